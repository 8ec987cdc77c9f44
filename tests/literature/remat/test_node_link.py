import json

import pytest

from kiwi.errors import InvalidProblemError
from kiwi.literature.remat.node_link import from_node_link, read_node_link

from .graphs import random_graph, write_node_link


@pytest.mark.parametrize("seed", range(10))
def test_written_graphs_are_read_back(tmp_path, seed):
    graph = random_graph(seed, 8)
    write_node_link(graph, tmp_path / "graph.json")
    assert read_node_link(tmp_path / "graph.json").graph == graph


def test_order_is_by_generations_where_none_is_given():
    nodes = [{"id": name, "cost_cpu": 1, "cost_ram": 1} for name in "abcd"]
    links = [("a", "c"), ("c", "d"), ("b", "d")]
    data = {"nodes": nodes, "links": [{"source": s, "target": t} for s, t in links]}
    loaded = from_node_link(data)
    assert [loaded.ids[index] for index in loaded.graph.order] == ["a", "b", "c", "d"]


def test_older_files_name_links_by_numbers_and_nodes_by_name():
    nodes = [{"name": 7, "duration": 2, "out_cost": 3}, {"name": 5, "duration": 1, "out_cost": 4}]
    data = {"graph": {"order": [5, 7]}, "nodes": nodes, "links": [{"0": 5, "1": 7}]}
    loaded = from_node_link(data)
    assert loaded.ids == (7, 5)
    assert loaded.graph.order == (1, 0)
    assert loaded.graph.operators[0].inputs == (1,)
    assert loaded.graph.operators[0].compute_seconds == 2


def test_cycles_are_refused():
    nodes = [{"id": name, "cost_cpu": 1, "cost_ram": 1} for name in "ab"]
    links = [{"source": "a", "target": "b"}, {"source": "b", "target": "a"}]
    with pytest.raises(InvalidProblemError, match="has a cycle"):
        from_node_link({"nodes": nodes, "links": links})


@pytest.mark.parametrize("text", ["{", "[]", "{}", json.dumps({"nodes": [{}], "links": []})])
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(InvalidProblemError):
        read_node_link(path)
