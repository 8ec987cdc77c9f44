"""Where in the host's memory a plan puts the values that it offloads (`Execution.fetched`).

*Scans.* Each iteration hands its element on as a stacked result, which lies in the host's memory;
the loop that reads it fetches the element of its own iteration. XLA:TPU copies one iteration ahead,
in either direction.

*Outside of loops.* XLA would begin every copy to the host as late, and each copy back as early as
it can, so that all values lie on the device at once.

XLA:GPU keeps copies behind barriers. A value is copied as it is; what is read some steps later
passes a barrier with the copy, which begins at once and ends there (`steps_of_copies`). Back, the
copy passes a barrier with the trigger of its step (`kiwi.emit.barriers`). DMA engines move whole
arrays beside all kernels; elements of a buffer would be moved by a kernel, for which matmuls have
to make room (on an H100, copies of 99 ms took 105 ms of the step that way, and 36 ms this way).

XLA:TPU moves copies in front of barriers. So there these values go the way of those of scans: equal
ones are parts of one buffer, into which they are written, and of which they are slices. What paces
the copies are the indices, to which zeros are added that XLA cannot know to be zeros:

- A slice's index passes a barrier with the trigger of its step (`kiwi.emit.barriers`).
- Behind each update one number is read back, the token. The next value that is offloaded passes a
  barrier with it, so that whoever reads that value waits until the earlier copy has ended; and the
  token is part of the next index, without which XLA would drop it.

*Arguments and results* that the caller has there go the same way on TPUs, each in two halves: a
fetch waits for the trigger of its step, a copy back for the token of the one before.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kiwi.emit.execution import Execution
from kiwi.hlo.host_memory import buffer_key

_FEWEST_STEPS = 2
"""How many steps the only copy to the host has."""


def steps_of_copies(execution: Execution) -> int:
    """In front of how many steps a copy to the host begins that has to end: as many as are between
    two of them, so that one is under way."""
    steps, units = execution.schedule.steps, execution.units.units
    begun = sorted(steps.index(u) for u in execution.fetched if units[u].loop is None)
    between = (begun[-1] - begun[0]) // (len(begun) - 1) if len(begun) > 1 else _FEWEST_STEPS
    return max(1, between)


@dataclass(frozen=True)
class HostPlace:
    """The element of a buffer in the host's memory that a value is: `count` values share one, on
    GPUs one value is the buffer."""

    buffer: int
    index: int
    count: int


def host_places(execution: Execution) -> Mapping[int, HostPlace]:
    """The place of each offloaded value that is in no loop, in the order of the schedule."""
    units = execution.units
    members: dict[object, list[int]] = {}
    for unit in dict.fromkeys(execution.schedule.steps):
        if unit in execution.fetched and units.units[unit].loop is None:
            (value,) = units.units[unit].outputs
            info = units.graph.program.values[value]
            key: object = value
            if execution.compiler.hoists_copies:
                key = buffer_key(info.shape, info.dtype, execution.layouts[value])
            members.setdefault(key, []).append(value)
    return {
        value: HostPlace(number, index, len(values))
        for number, values in enumerate(members.values())
        for index, value in enumerate(values)
    }
