"""The JSON of the ASPLOS/EuroSys 2025 contest on intra-operator parallelism (google/iopddl).

`problem.nodes` has `intervals` (one half-open interval per node), `costs` and `usages` (one number
per option); `problem.edges` has `nodes` and `costs` (row-major over the pair); `usage_limit` holds
at every point of time. Costs of `FORBIDDEN_COST` and more stand for infinity there.
"""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kiwi.errors import InvalidProblemError
from kiwi.solver.problem import Edge, Interval, Node, Problem

FORBIDDEN_COST = 10**17
"""The contest writes 1e18 for "forbidden"; sums of several of them stay above this."""

_LARGE = 10**300

_SUGGESTION = "compare the file with the format in the documentation of kiwi.solver.contest"


def read_contest(path: str | Path) -> Problem:
    """Reads an instance, gzipped where its name ends in .gz.

    Raises `InvalidProblemError` for anything that is not an instance.
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
        text = gzip.decompress(raw) if path.suffix == ".gz" else raw
        return problem_from_contest(json.loads(text))
    except (OSError, EOFError, ValueError) as error:
        if isinstance(error, InvalidProblemError):
            raise
        raise InvalidProblemError(
            f"{path} cannot be read as an instance: {error}",
            cause="the file is missing, cut off, or not JSON",
            suggestion=_SUGGESTION,
        ) from error


def problem_from_contest(document: object) -> Problem:
    """The problem in a parsed JSON document.

    Raises `InvalidProblemError` where the document does not have the contest's form.
    """
    body = _member(document, "problem", dict)
    nodes, edges = _member(body, "nodes", dict), _member(body, "edges", dict)
    intervals, costs, usages = (_member(nodes, k, list) for k in ("intervals", "costs", "usages"))
    if not len(intervals) == len(costs) == len(usages):
        raise _malformed(
            f"{len(intervals)} intervals, {len(costs)} costs and {len(usages)} usages of nodes"
        )
    built = tuple(
        _node(f"n{i}", interval, cost, usage)
        for i, (interval, cost, usage) in enumerate(zip(intervals, costs, usages, strict=True))
    )
    horizon = max((interval[1] for interval in intervals), default=0)
    limit = _member(body, "usage_limit", int)
    return Problem(built, _edges(edges, built), limit, horizon)


def problem_to_contest(problem: Problem, name: str = "kiwi") -> dict:
    """The JSON document of a problem whose options hold memory over one interval per node.

    Raises `InvalidProblemError` where the format cannot say what the problem says.
    """
    if problem.limit_bytes is None:
        raise _inexpressible("no memory limit")
    columns = [_single_interval(node) for node in problem.nodes]
    return {
        "problem": {
            "name": name,
            "nodes": {
                "intervals": [interval for interval, _ in columns],
                "costs": [_numbers(node.costs) for node in problem.nodes],
                "usages": [usage for _, usage in columns],
            },
            "edges": {
                "nodes": [[edge.tail, edge.head] for edge in problem.edges],
                "costs": [_numbers(_dense(edge).ravel()) for edge in problem.edges],
            },
            "usage_limit": problem.limit_bytes,
        }
    }


def write_contest(problem: Problem, path: str | Path, name: str = "kiwi") -> None:
    """Writes `problem_to_contest`, gzipped where the name ends in .gz."""
    path = Path(path)
    raw = json.dumps(problem_to_contest(problem, name)).encode()
    path.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)


def _node(name: str, interval: Any, costs: Any, usages: Any) -> Node:
    if not _is_numbers(interval) or len(interval) != 2:
        raise _malformed(f"the interval {interval!r} of node {name}")
    if not (_is_numbers(costs) and _is_numbers(usages) and len(costs) == len(usages)):
        raise _malformed(f"costs {str(costs)[:60]} and usages {str(usages)[:60]} of node {name}")
    start, end = int(interval[0]), int(interval[1])
    uses = tuple((Interval(start, end, int(usage)),) if usage else () for usage in usages)
    return Node(name, _costs(costs), uses)


def _edges(edges: dict, nodes: tuple[Node, ...]) -> tuple[Edge, ...]:
    pairs, tables = _member(edges, "nodes", list), _member(edges, "costs", list)
    if len(pairs) != len(tables):
        raise _malformed(f"{len(pairs)} pairs but {len(tables)} tables of edges")
    return tuple(_edge(pair, table, nodes) for pair, table in zip(pairs, tables, strict=True))


def _edge(pair: Any, table: Any, nodes: tuple[Node, ...]) -> Edge:
    if not _is_numbers(pair) or len(pair) != 2:
        raise _malformed(f"the nodes {pair!r} of an edge")
    tail, head = pair
    if not (0 <= tail < len(nodes) and 0 <= head < len(nodes)):
        raise _malformed(f"an edge between nodes {pair} of {len(nodes)}")
    shape = (nodes[tail].costs.size, nodes[head].costs.size)
    if not _is_numbers(table) or len(table) != shape[0] * shape[1]:
        raise _malformed(f"an edge {pair} whose costs are not {shape[0]} x {shape[1]} numbers")
    return Edge(tail, head, _costs(table).reshape(shape))


def _costs(values: list) -> np.ndarray:
    try:
        costs = np.array(values, dtype=np.float64)
    except OverflowError:  # an integer beyond floating point
        costs = np.array([float(min(max(v, -_LARGE), _LARGE)) for v in values])
    if (costs < -FORBIDDEN_COST).any():
        raise _malformed(f"the cost {costs.min():g}, too large to add up")
    costs[costs >= FORBIDDEN_COST] = np.inf
    return costs


def _is_numbers(values: object) -> bool:
    return isinstance(values, list) and set(map(type, values)) <= {int, float}


def _member(document: object, key: str, kind: type) -> Any:
    value = document.get(key) if isinstance(document, dict) else None
    if not isinstance(value, kind):
        raise _malformed(f"no {kind.__name__} named {key!r}")
    return value


def _malformed(what: str) -> InvalidProblemError:
    return InvalidProblemError(
        f"The document is not an instance of the contest: {what}.", suggestion=_SUGGESTION
    )


def _single_interval(node: Node) -> tuple[list[int], list[int]]:
    """The interval of a node and the bytes of each option in it."""
    spans = {(use.start, use.end) for option in node.usage for use in option}
    if len(spans) > 1 or any(len(option) > 1 for option in node.usage):
        raise _inexpressible(f"options of node {node.name!r} that hold memory at different times")
    span = next(iter(spans), (0, 0))
    return list(span), [sum(use.bytes for use in option) for option in node.usage]


def _dense(edge: Edge) -> np.ndarray:
    options = [range(count) for count in edge.option_counts]
    cells = [[edge.costs[edge.cell(a, b)] for b in options[1]] for a in options[0]]
    return np.array(cells)


def _inexpressible(what: str) -> InvalidProblemError:
    return InvalidProblemError(
        f"The contest's format cannot express {what}.",
        cause="it knows one interval of time per node and always a limit",
        suggestion="build the problem in Python instead",
    )


def _numbers(costs: Sequence[float] | np.ndarray) -> list:
    return [10**18 if np.isinf(c) else int(c) if c == int(c) else float(c) for c in costs]
