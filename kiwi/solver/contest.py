"""Reads the JSON files of the ASPLOS/EuroSys 2025 contest on intra-operator parallelism
(google/iopddl).

`problem.nodes` has `intervals` (one half-open interval per node), `costs` and `usages` (one number
per option). `problem.edges` has `nodes` and `costs` (row-major over the pair).
`problem.usage_limit` holds at every point of time. Costs of `FORBIDDEN_COST` and more mean
infinity.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from kiwi.errors import InvalidProblemError
from kiwi.messages import topics
from kiwi.solver.problem import Edge, Interval, Node, Problem

FORBIDDEN_COST = 10**17
"""The smallest cost that means "forbidden". The contest writes 1e18 and sums of several of
these."""

_LARGE = 10**300
"""The integer to which larger ones are reduced, so that float64 can hold them."""

_SUGGESTION = "compare the file with the format in the documentation of kiwi.solver.contest"


def read_contest(path: str | Path) -> Problem:
    """Reads an instance. A file whose name ends in .gz is decompressed.

    **Raises:** `InvalidProblemError` if the file cannot be read or is not an instance.
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
            topic=topics.INSTANCE,
            cause="the file is missing, cut off, or not JSON",
            suggestion=_SUGGESTION,
        ) from error


def problem_from_contest(document: object) -> Problem:
    """Returns the problem in a parsed JSON document.

    **Raises:** `InvalidProblemError` if the document does not have the contest's form.
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
    pairs, tables = _member(edges, "nodes", list), _member(edges, "costs", list)
    if len(pairs) != len(tables):
        raise _malformed(f"{len(pairs)} pairs but {len(tables)} tables of edges")
    joined = tuple(_edge(pair, table, built) for pair, table in zip(pairs, tables, strict=True))
    return Problem(built, joined, limit, horizon)


def _node(name: str, interval: Any, costs: Any, usages: Any) -> Node:
    if not _is_numbers(interval) or len(interval) != 2:
        raise _malformed(f"the interval {interval!r} of node {name}")
    if not (_is_numbers(costs) and _is_numbers(usages) and len(costs) == len(usages)):
        raise _malformed(f"costs {str(costs)[:60]} and usages {str(usages)[:60]} of node {name}")
    start, end = int(interval[0]), int(interval[1])
    uses = tuple((Interval(start, end, int(usage)),) if usage else () for usage in usages)
    return Node(name, _costs(costs), uses)


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
    except OverflowError:  # An integer exceeds the range of float64.
        costs = np.array([float(min(max(value, -_LARGE), _LARGE)) for value in values])
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
        f"The document is not an instance of the contest: {what}.",
        topic=topics.INSTANCE,
        suggestion=_SUGGESTION,
    )
