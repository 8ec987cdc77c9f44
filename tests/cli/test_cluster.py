"""`kiwi cluster`, in this process."""

import json
from pathlib import Path

from kiwi.cli.main import main

MACHINE = Path(__file__).parents[1] / "mesh" / "clusters" / "pairs_and_numa_nodes.json"


def test_a_recorded_cluster_is_reported(capsys):
    assert main(["cluster", str(MACHINE)]) == 0
    text = capsys.readouterr().out
    assert "8 devices as a mesh of 2 x 2 x 2: uniform links" in text
    assert "device order: 0,4,2,6,1,5,3,7" in text


def test_json_names_shape_order_and_links(capsys):
    assert main(["cluster", str(MACHINE), "--mesh", "1,2,4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mesh_shape"] == [1, 2, 4] and not found["uniform"]
    assert sorted(found["device_order"]) == list(range(8))
    assert found["axes"][0] == {"size": 1}
    assert found["axes"][2]["link"]["bandwidth_bytes_per_second"] > 20e9


def test_a_broken_file_is_an_error_that_is_explained(tmp_path, capsys):
    path = tmp_path / "cluster.json"
    path.write_text("{}")
    assert main(["cluster", str(path)]) == 4
    assert "is not a cluster of Kiwi" in " ".join(capsys.readouterr().err.split())
