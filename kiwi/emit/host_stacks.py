"""Where in the host's memory a plan puts the values that it offloads (`Execution.fetched`).

*Scans.* Each iteration hands its element on as a stacked result, which lies in the host's memory;
the loop that reads it fetches the element of its own iteration. XLA:TPU copies one iteration ahead,
in either direction.

*Outside of loops.* XLA would begin every copy to the host as late, and each copy back as early as
it can, so that all values lie on the device at once, whatever barriers they pass: it moves the copy
in front of the barrier. So these values go the way of those of scans: equal ones are parts of one
buffer, into which they are written, and of which they are slices. What paces the copies are the
indices, to which zeros are added that XLA cannot know to be zeros:

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
from kiwi.mesh import DeviceMesh


def paces_arguments(mesh: DeviceMesh) -> bool:
    """Whether what the caller has on the host is copied in halves, at indices that XLA does not
    know: on TPUs. XLA:GPU refuses such slices of an argument."""
    return mesh.hardware.interconnect is not None


@dataclass(frozen=True)
class HostPlace:
    """The element of a buffer in the host's memory that a value is: `count` values share one."""

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
            key = buffer_key(info.shape, info.dtype, execution.layouts[value])
            members.setdefault(key, []).append(value)
    return {
        value: HostPlace(number, index, len(values))
        for number, values in enumerate(members.values())
        for index, value in enumerate(values)
    }
