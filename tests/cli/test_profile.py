"""`kiwi profile`, in this process."""

import json

from kiwi.cli.main import main
from kiwi.mesh import ProfileTable
from kiwi.mesh.measure import Bench, Timing

FILE = """
import jax

def step(w, x):
    return (x @ w).sum()

def make_args():
    return jax.ShapeDtypeStruct((8, 16), "float32"), jax.ShapeDtypeStruct((4, 8), "float32")
"""


def test_a_function_of_a_file_is_profiled_and_the_table_plans_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Bench, "time", lambda *_: Timing(1e-4, 0.1))
    (tmp_path / "model.py").write_text(FILE)
    function, out = f"{tmp_path / 'model.py'}:step", str(tmp_path / "table.json")
    assert main(["profile", function, "--mesh", "2", "--out", out, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    table = ProfileTable.load(out)
    assert found["operators"] == len(table.operators) > 1
    assert found["collectives"] == len(table.collectives) == 25
    assert main(["plan", function, "--mesh", "2", "--profile", out, "--verify", "none"]) == 0
    assert "% measured" in capsys.readouterr().out
