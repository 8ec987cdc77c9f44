"""A `RematGraph` as flat arrays, for compiled code.

Only values that some operator writes appear here: the others are resident throughout, so
that the caller subtracts them from the budget.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kiwi.literature.remat.graph import RematGraph
from kiwi.solver.schedule import Schedule

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

EVENT_POOL = 1 << 23
"""Most events (computations and readings of values) that a state has room for."""
MOST_COPIES = 24
"""Most computations of one operator, if the event pool allows, unless it begins with more."""


class Tables(NamedTuple):
    """The graph. Operator `n` reads `input_values[input_start[n]:input_start[n + 1]]`.

    `size` is in bytes per value, `seconds` and `temporary` (bytes) are per operator; `event_start`
    is where the events of a value begin in the pool; `most_copies` bounds the computations
    of each operator. Operators from `first_fetch` on bring a value back from the host: they read
    nothing, write that value, and may occur any number of times, or never. `fetch_of` is that
    operator by value, -1 if there is none.
    """

    input_start: Ints
    input_values: Ints
    output_start: Ints
    output_values: Ints
    size: Floats
    seconds: Floats
    temporary: Floats
    is_result: npt.NDArray[np.bool_]
    producer: Ints
    event_start: npt.NDArray[np.int64]
    most_copies: Ints
    first_fetch: int
    fetch_of: Ints


def make_tables(
    graph: RematGraph, start: Schedule, fetch_seconds: Mapping[int, float] | None = None
) -> Tables:
    """`graph` as arrays; values are renumbered by dropping those that no operator writes.

    There is room for the events of `start`, even where it has more copies than may be added.
    `fetch_seconds`: by value, for those that may be fetched from the host, in the order of their
    operators.
    """
    written = [value for value, producer in enumerate(graph.producer) if producer >= 0]
    number = {value: place for place, value in enumerate(written)}
    inputs = [[number[v] for v in op.inputs if v in number] for op in graph.operators]
    outputs = [[number[v] for v in op.outputs] for op in graph.operators]
    fetched = fetch_seconds or {}
    inputs += [[] for _ in fetched]
    outputs += [[number[v]] for v in fetched]
    events_once = [2 + len(graph.readers[value]) for value in written]
    most_copies = max(2, min(MOST_COPIES, EVENT_POOL // max(1, sum(events_once))))
    room = max([most_copies, *start.computations().values()])
    starts = np.concatenate(([0], np.cumsum(np.array(events_once, np.int64) * room)))
    return Tables(
        *_compressed(inputs),
        *_compressed(outputs),
        np.array([graph.values[value].size_bytes for value in written], np.float64),
        np.array([*(op.compute_seconds for op in graph.operators), *fetched.values()], np.float64),
        np.array([*(op.temporary_bytes for op in graph.operators), *(0 for _ in fetched)], float),
        np.array([value in graph.results for value in written], np.bool_),
        np.array([graph.producer[value] for value in written], np.int32),
        starts.astype(np.int64),
        np.array(
            [
                *(most_copies if op.recomputable else 1 for op in graph.operators),
                *(most_copies for _ in fetched),
            ],
            np.int32,
        ),
        len(graph.operators),
        _fetch_of(len(graph.operators), len(written), [number[v] for v in fetched]),
    )


def _fetch_of(first_fetch: int, values: int, fetched: list[int]) -> Ints:
    fetch_of = np.full(values, -1, np.int32)
    fetch_of[fetched] = range(first_fetch, first_fetch + len(fetched))
    return fetch_of


def _compressed(rows: list[list[int]]) -> tuple[Ints, Ints]:
    starts = np.cumsum([0] + [len(row) for row in rows]).astype(np.int32)
    return starts, np.array([value for row in rows for value in row], np.int32)
