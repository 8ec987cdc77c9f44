"""The host beside the device, and schedules with copies to the host and back.

The host has memory, a link of two directions, and a processor.
"""

import math
from dataclasses import dataclass

from kiwi.errors import InvalidProblemError
from kiwi.literature.remat.graph import RematGraph

IDLE = -1
"""The entry of a step without an operator, in which only copies and the host work."""


@dataclass(frozen=True)
class Update:
    """An operator that overwrites inputs of the graph in place: weights, the optimizer's state.

    It runs once, on the device in `compute_seconds` or on the host in `host_seconds`. Infinite
    `host_seconds` mean that it runs on the device only. The operator reads what it overwrites, and
    nothing reads the overwritten values later.
    """

    operator: int
    overwrites: frozenset[int]
    host_seconds: float = math.inf


@dataclass(frozen=True)
class Host:
    """The host of one device.

    - `outward_bytes_per_second`, `inward_bytes_per_second`: the rates of copies from the device to
      the host, and back. Both directions work at once.
    - `memory_bytes`: the memory for values of the graph; None for as much as they need.
    - `updates`: operators that may run on the host.
    - `stays`: values of the graph that are never copied to the host.

    Raises `kiwi.errors.InvalidProblemError` unless bandwidths are positive.
    """

    outward_bytes_per_second: float
    inward_bytes_per_second: float
    memory_bytes: int | None = None
    updates: tuple[Update, ...] = ()
    stays: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if not min(self.outward_bytes_per_second, self.inward_bytes_per_second) > 0:
            raise InvalidProblemError("a link to the host must have a positive bandwidth")

    def outward_seconds(self, size_bytes: float) -> float:
        """Returns the time of a copy from the device to the host."""
        return size_bytes / self.outward_bytes_per_second

    def inward_seconds(self, size_bytes: float) -> float:
        """Returns the time of a copy from the host to the device."""
        return size_bytes / self.inward_bytes_per_second

    def both_ways_seconds(self, size_bytes: float) -> float:
        """Returns the time of a copy to the host and back."""
        return self.outward_seconds(size_bytes) + self.inward_seconds(size_bytes)

    def check(self, graph: RematGraph) -> None:
        """Raises `kiwi.errors.InvalidProblemError` if an update does not match its operator in
        `graph`."""
        for update in self.updates:
            operator = graph.operators[update.operator]
            wrong = [value for value in update.overwrites if graph.producer[value] >= 0]
            if wrong or not update.overwrites <= set(operator.inputs):
                raise InvalidProblemError(
                    f"{operator.name!r} overwrites what is no input of the graph, or not read by it"
                )


@dataclass(frozen=True)
class Transfer:
    """A copy of `value` during the steps `first` to `last`, both included."""

    value: int
    first: int
    last: int


@dataclass(frozen=True)
class HostRun:
    """An update on the host during the steps `first` to `last`, both included."""

    operator: int
    first: int
    last: int


@dataclass(frozen=True)
class OffloadSchedule:
    """The computations of the device, step by step, and the copies and updates beside them.

    - `steps`: the operator of each step, or `IDLE`.
    - `outward`, `inward`: copies from the device to the host, and back.
    - `host_runs`: updates on the host.
    - `host_inputs`: inputs of the graph that are on the host when the training step begins and when
      it ends.

    An operator, a transfer or a host run may use a value only where the last copy of the value was
    made. An older copy leaves memory after its last use.
    """

    steps: tuple[int, ...]
    outward: tuple[Transfer, ...] = ()
    inward: tuple[Transfer, ...] = ()
    host_runs: tuple[HostRun, ...] = ()
    host_inputs: frozenset[int] = frozenset()
