"""A `RematGraph` as flat arrays, for compiled code.

Only values that some operator writes appear here. Other values are resident throughout, and the
caller subtracts their memory from the budget.
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
"""The largest number of events (computations and reads of values) for which a state has room."""
MOST_COPIES = 24
"""The largest number of computations of one operator that moves may reach. A smaller number, at
least 2, applies if the event pool does not suffice for it."""


class Tables(NamedTuple):
    """The graph. Operator `n` reads `input_values[input_start[n]:input_start[n + 1]]`.

    - `output_start`, `output_values`: what operators write, in the same form.
    - `size`: bytes per value.
    - `seconds`, `temporary`: seconds and temporary bytes per operator.
    - `is_result`, `producer`: per value.
    - `event_start`: the index of each value's first event in the pool.
    - `most_copies`: the largest number of computations of each operator.
    - `first_fetch`: the first of the operators that bring a value back from the host. Such an
      operator reads nothing, writes its value, and may occur any number of times, or never.
    - `fetch_of`: the fetch of each value, -1 if there is none.
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
    """Returns `graph` as arrays. Values are renumbered without those that no operator writes.

    The pool has room for the events of `start`, even if `start` has more copies than may be added.
    `fetch_seconds` maps each value that may be fetched from the host to the time of a fetch. The
    fetches are operators beyond those of the graph, in this order.
    """
    written = [value for value, producer in enumerate(graph.producer) if producer >= 0]
    number = {value: place for place, value in enumerate(written)}
    inputs = [
        [number[value] for value in operator.inputs if value in number]
        for operator in graph.operators
    ]
    outputs = [[number[value] for value in operator.outputs] for operator in graph.operators]
    fetched = fetch_seconds or {}
    inputs += [[] for _ in fetched]
    outputs += [[number[value]] for value in fetched]
    events_once = [2 + len(graph.readers[value]) for value in written]
    most_copies = max(2, min(MOST_COPIES, EVENT_POOL // max(1, sum(events_once))))
    room = max([most_copies, *start.computations().values()])
    starts = np.concatenate(([0], np.cumsum(np.array(events_once, np.int64) * room)))
    return Tables(
        *_compressed(inputs),
        *_compressed(outputs),
        np.array([graph.values[value].size_bytes for value in written], np.float64),
        np.array(
            [*(operator.compute_seconds for operator in graph.operators), *fetched.values()],
            np.float64,
        ),
        np.array(
            [*(operator.temporary_bytes for operator in graph.operators), *(0 for _ in fetched)],
            float,
        ),
        np.array([value in graph.results for value in written], np.bool_),
        np.array([graph.producer[value] for value in written], np.int32),
        starts.astype(np.int64),
        np.array(
            [
                *(most_copies if operator.recomputable else 1 for operator in graph.operators),
                *(most_copies for _ in fetched),
            ],
            np.int32,
        ),
        len(graph.operators),
        _fetch_of(len(graph.operators), len(written), [number[value] for value in fetched]),
    )


def _fetch_of(first_fetch: int, values: int, fetched: list[int]) -> Ints:
    fetch_of = np.full(values, -1, np.int32)
    fetch_of[fetched] = range(first_fetch, first_fetch + len(fetched))
    return fetch_of


def _compressed(rows: list[list[int]]) -> tuple[Ints, Ints]:
    starts = np.cumsum([0] + [len(row) for row in rows]).astype(np.int32)
    return starts, np.array([value for row in rows for value in row], np.int32)
