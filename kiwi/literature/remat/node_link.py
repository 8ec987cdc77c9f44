"""Reading graphs from networkx node-link JSON.

In such a file each node is one operator with one result. The keys differ between sources;
`SECONDS_KEYS`, `BYTES_KEYS` and `ID_KEYS` list the keys that Kiwi reads. Links are
`source`/`target` pairs, or `0`/`1` pairs as older versions of networkx write them. The given order
is `graph.order` if present. Otherwise it is the order of `networkx.topological_sort` (by
generations, each in the order of discovery). Nodes named `X` and `X_backward` are taken as a
forward operator and its backward operator.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, TypeAlias

from kiwi.errors import InvalidProblemError
from kiwi.literature.remat.graph import RematGraph, single_output_graph

SECONDS_KEYS = ("duration", "cost_cpu", "time", "compute_seconds")
BYTES_KEYS = ("out_cost", "cost_ram", "mem", "size_bytes")
ID_KEYS = ("id", "name")
BACKWARD_SUFFIX = "_backward"

NodeId: TypeAlias = int | str


@dataclass(frozen=True)
class NodeLinkGraph:
    """A graph, and the identifier `ids[operator]` that each operator's node has in the file."""

    graph: RematGraph
    ids: tuple[NodeId, ...]


def read_node_link(path: Path | str) -> NodeLinkGraph:
    """Returns the graph in file `path`; raises `kiwi.errors.InvalidProblemError` if it is not
    one."""
    try:
        data = json.loads(Path(path).read_text())
        return from_node_link(data)
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise InvalidProblemError(
            f"{path} is not a graph in node-link form",
            cause=f"{type(error).__name__}: {error}",
            suggestion="write it with networkx.node_link_data",
        ) from error


def from_node_link(data: dict[str, Any]) -> NodeLinkGraph:
    """Returns the graph of parsed node-link data.

    Raises `KeyError`, `TypeError` or `AttributeError` if the data has another form, and
    `kiwi.errors.InvalidProblemError` if they do not describe a graph.
    """
    nodes = data["nodes"]
    if not nodes:
        raise InvalidProblemError("the graph has no nodes")
    ids = tuple(node[_key_of(nodes[0], ID_KEYS)] for node in nodes)
    index = {node_id: place for place, node_id in enumerate(ids)}
    edges = [(index[writer], index[reader]) for writer, reader in _links(data)]
    given = data.get("graph", {}).get("order")
    order = (
        tuple(index[node_id] for node_id in given) if given else topological_order(len(ids), edges)
    )
    seconds_key, bytes_key = _key_of(nodes[0], SECONDS_KEYS), _key_of(nodes[0], BYTES_KEYS)
    graph = single_output_graph(
        [node[seconds_key] for node in nodes],
        [int(node[bytes_key]) for node in nodes],
        edges,
        names=[str(node.get("name", node_id)) for node, node_id in zip(nodes, ids, strict=True)],
        order=order,
        results=frozenset(index[node_id] for node_id in data.get("graph", {}).get("results", ())),
        backward_of=_pairs(nodes),
    )
    return NodeLinkGraph(graph, ids)


def topological_order(node_count: int, edges: list[tuple[int, int]]) -> tuple[int, ...]:
    """Returns the order of `networkx.topological_sort`; empty if there is a cycle."""
    sorter = TopologicalSorter(dict.fromkeys(range(node_count), ()))
    for writer, reader in dict.fromkeys(edges):
        sorter.add(reader, writer)
    with suppress(CycleError):
        return tuple(sorter.static_order())
    return ()


def _pairs(nodes: list[dict[str, Any]]) -> tuple[tuple[int, int], ...]:
    """Returns the pairs (forward node, backward node), known by the names `X` and `X_backward`."""
    place = {str(node.get("name", "")): index for index, node in enumerate(nodes)}
    return tuple(
        (index, place[name + BACKWARD_SUFFIX])
        for name, index in place.items()
        if name + BACKWARD_SUFFIX in place
    )


def _links(data: dict[str, Any]) -> list[tuple[NodeId, NodeId]]:
    links = data["links"] if "links" in data else data["edges"]
    if not links:
        return []
    source, target = ("source", "target") if "source" in links[0] else ("0", "1")
    return [(link[source], link[target]) for link in links]


def _key_of(node: dict[str, Any], keys: tuple[str, ...]) -> str:
    for key in keys:
        if key in node:
            return key
    raise InvalidProblemError(f"a node has none of the keys {', '.join(keys)}: {node}")
