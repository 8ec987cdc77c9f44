"""Schedules with copies to the host and back."""

from dataclasses import dataclass

IDLE = -1
"""A step without an operator, for copies alone."""


@dataclass(frozen=True)
class Transfer:
    """A copy of `value` that is made during the steps `first` to `last`, both included."""

    value: int
    first: int
    last: int


@dataclass(frozen=True)
class HostRun:
    """An update that the host makes during the steps `first` to `last`, both included."""

    operator: int
    first: int
    last: int


@dataclass(frozen=True)
class OffloadSchedule:
    """What the device computes, step by step, and what goes on beside it.

    - `steps`: the operator of each step, or `IDLE`.
    - `outward`, `inward`: copies from the device to the host, and back.
    - `host_runs`: updates on the host.
    - `host_inputs`: inputs of the graph that are on the host when the step begins, and again when
      it ends.

    A value may be used where the last copy of it was made: by an operator, by a transfer, by a host
    run. An older copy leaves memory after its last use.
    """

    steps: tuple[int, ...]
    outward: tuple[Transfer, ...] = ()
    inward: tuple[Transfer, ...] = ()
    host_runs: tuple[HostRun, ...] = ()
    host_inputs: frozenset[int] = frozenset()
