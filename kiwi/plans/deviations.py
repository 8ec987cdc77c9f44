"""Kernels of a plan whose compiled seconds differ from the planned seconds.

Both sides are attributed to the units of the plan. XLA's instructions name their units by scopes
(`kiwi.xla.read.name_scopes`), and a fused kernel names the unit of its root. So a fusion that the
estimate does not know appears as one unit that takes more time and other units that take none.
Units that compute the same at the same source line, as in equal layers, share one row.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kiwi.plans.breakdown import Decision
from kiwi.sizes import format_bytes, format_seconds
from kiwi.xla.simulated import UnitSeconds

MEMORY, COMPUTE, COMMUNICATION = "memory", "compute", "communication"
"""The quantities that a row compares: bytes at the compiled peak, seconds of kernels, and seconds
of transfers."""


class Planned(Protocol):
    """The part of a plan that this module reads."""

    @property
    def decisions(self) -> Sequence[Decision]:
        """One decision for each unit."""
        ...


MOST_NAMED = 3
"""A sentence names only this many kernels: the kernels with the largest differences."""


@dataclass(frozen=True)
class KernelDeviation:
    """The deviation of one kind of kernel, on one device.

    - `what`: `MEMORY`, `COMPUTE` or `COMMUNICATION`.
    - `predicted`, `compiled`: the bytes or seconds of all its units together.
    - `name`: the opcode and phase of the units' roots, or the name of memory or time of no unit.
    - `source_line`: `"file.py:12 (function)"`; "" if unknown.
    - `shape`: the shape of the first unit's first result.
    - `units`: the plan's units, in order; empty for memory or time of no unit.
    - `cause`: why only one side holds a buffer (`kiwi.plans.peak_deviations`); "" if unknown.
    """

    what: str
    predicted: float
    compiled: float
    name: str
    source_line: str = ""
    shape: tuple[int, ...] = ()
    units: tuple[int, ...] = ()
    cause: str = ""

    @property
    def excess(self) -> float:
        """The amount by which the estimate is too high; negative if it is too low."""
        return self.predicted - self.compiled


def seconds_rows(plan: Planned, compiled: Mapping[int, UnitSeconds]) -> Iterable[KernelDeviation]:
    """Yields rows for the seconds of kernels and of transfers in which plan and program differ.
    `compiled`: the seconds of the compiled program by unit. The key -1 stands for no unit."""
    nothing = UnitSeconds()
    computing, moving = {}, {}
    for decision in plan.decisions:
        costs, measured = decision.costs, compiled.get(decision.unit, nothing)
        if costs is None:
            continue
        computing[decision.unit] = costs.computing_seconds, measured.compute
        moving[decision.unit] = costs.moving_seconds, measured.communication
    yield from grouped(plan, COMPUTE, computing)
    yield from grouped(plan, COMMUNICATION, moving)
    unknown = compiled.get(-1, nothing)
    if unknown.compute:
        yield KernelDeviation(COMPUTE, 0.0, unknown.compute, "instructions of no unit")
    if unknown.communication:
        yield KernelDeviation(COMMUNICATION, 0.0, unknown.communication, "transfers of no unit")


def grouped(
    plan: Planned,
    what: str,
    by_unit: Mapping[int, tuple[float, float]],
    prefix: str = "",
    cause: str = "",
) -> Iterable[KernelDeviation]:
    """Yields one row for each group of equal units, with the sum over the group. Rows in which both
    sides agree are left out.

    - `by_unit`: the predicted and the compiled figure of each unit.
    - `prefix`: the prefix of the rows' names.
    - `what`, `cause`: as in `KernelDeviation`.
    """
    groups: dict[tuple[str, str, tuple[int, ...]], list[int]] = defaultdict(list)
    for unit in sorted(by_unit):
        decision = plan.decisions[unit]
        groups[_kind(decision), decision.source_line, decision.shape].append(unit)
    for (name, source_line, shape), units in groups.items():
        predicted, compiled = (sum(by_unit[unit][side] for unit in units) for side in (0, 1))
        if predicted != compiled:
            members = tuple(units)
            pair = float(predicted), float(compiled)
            yield KernelDeviation(what, *pair, prefix + name, source_line, shape, members, cause)


def _kind(decision: Decision) -> str:
    opcode = decision.opcode.removeprefix("stablehlo.")
    return f"{opcode} ({decision.phase})"


def worst_text(rows: Sequence[KernelDeviation]) -> str:
    """Returns a sentence that names the kernels whose seconds differ most; "" if none differs."""
    timed = [row for row in rows if row.what in (COMPUTE, COMMUNICATION)]
    return "; ".join(
        f"{row.name}{_source(row)}: {row.what} "
        f"{format_seconds(row.compiled)} for {format_seconds(row.predicted)}"
        for row in _largest(timed)
    )


def worst_memory_text(rows: Sequence[KernelDeviation], excess_bytes: float) -> str:
    """Returns a sentence that names the buffers that make the compiled peak larger or smaller than
    the estimated peak; "" if no buffer does.

    - `excess_bytes`: the compiled peak less the estimated peak.
    """
    held = [row for row in rows if row.what == MEMORY and row.excess * excess_bytes < 0]
    return "; ".join(
        f"{row.name}{_source(row)} {format_bytes(row.compiled)} for {format_bytes(row.predicted)}"
        + (f", {row.cause}" if row.cause else "")
        for row in _largest(held)
    )


def _largest(rows: Sequence[KernelDeviation]) -> Sequence[KernelDeviation]:
    return sorted(rows, key=lambda row: -abs(row.excess))[:MOST_NAMED]


def _source(row: KernelDeviation) -> str:
    return f" of {row.source_line.rsplit('/', 1)[-1]}" if row.source_line else ""
