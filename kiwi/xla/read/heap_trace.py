"""Lives of temporaries, from the trace of the heap simulator that placed them.

XLA:GPU records the trace in its buffer assignment, XLA:CPU does not. It lists in the order of the
schedule when each buffer was allocated, when another one came to share its place, and when it was
freed. A free comes after the instruction that last reads the buffer, and no instruction that
allocates lies between the two, so that a life ends at the position of the next allocation at the
latest: memory at the peak is exact.
"""

from collections.abc import Mapping
from typing import Any

_ALLOC, _FREE, _SHARE = 0, 1, 2


def traced_lives(assignment: Any, position: Mapping[str, int]) -> dict[int, tuple[int, int]]:
    """For each logical buffer in the assignment's traces its half-open range of positions.
    `position` gives the place in the flattened schedule of each instruction, by name."""
    lives: dict[int, tuple[int, int]] = {}
    for trace in assignment.heap_simulator_traces:
        lives.update(_lives_of(trace.events, position))
    return lives


def _lives_of(events: Any, position: Mapping[str, int]) -> dict[int, tuple[int, int]]:
    last = max(position.values(), default=0) + 1
    starts: dict[int, int] = {}
    freed: list[int] = []
    lives: dict[int, tuple[int, int]] = {}
    for event in events:
        if event.kind == _FREE:
            freed.append(event.buffer_id)
            continue
        start = position.get(event.instruction_name, 0)
        # A buffer that is shared in the instruction that reads it last is freed in its trace
        # before; it must not end before it began.
        lives.update((b, (starts[b], max(start, starts[b] + 1))) for b in freed if b in starts)
        freed = []
        starts[event.buffer_id] = start
    lives.update((b, (starts[b], last)) for b in freed if b in starts)
    unfreed = starts.keys() - lives.keys()
    return lives | {b: (starts[b], last) for b in unfreed}
