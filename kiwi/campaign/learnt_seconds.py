"""What the compiled program of a plan teaches of seconds, kernel by kernel.

The schedule of a program is attributed to the plan's units by their scopes
(`kiwi.xla.simulated.seconds_by_unit`). Where the program takes longer than the plan, units that
take much longer than their price are corrected (`kiwi.corrections`):

- Transfers that nobody planned, and what the unit then computes more, belong to the sharding that
  caused them: XLA's partitioner gathers an operand that the plan shards.
- What is only computed more is a factor of the kind's price in every sharding.

A fused kernel names the unit of its root alone: what neighbours no longer take is set against it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kiwi.campaign import shares
from kiwi.corrections import Correction
from kiwi.hlo.units import UnitGraph
from kiwi.plans.record import PlanRecord
from kiwi.problem.corrected import kind_of
from kiwi.xla.simulated import UnitSeconds

_NOTHING = UnitSeconds()


@dataclass(frozen=True)
class Took:
    """What a program takes for a unit, and what it was priced at, in seconds of a step.

    - `computing`: of kernels, less what neighbours no longer take; `priced`: as planned.
    - `unplanned`: of transfers beyond those that are planned.
    - `runs`: how often it is computed in a step, iterations of loops aside.
    """

    unit: int
    computing: float
    priced: float
    unplanned: float
    runs: int

    @property
    def excess(self) -> float:
        """By how much it takes longer than its price; negative where it takes less."""
        return self.computing + self.unplanned - self.priced

    @property
    def seconds_of_run(self) -> float:
        """Of one computation."""
        return (self.computing + self.unplanned) / self.runs


def learnt(plan: PlanRecord) -> tuple[Correction, ...]:
    """The corrections that the program of a plan teaches; none where it agrees with the plan, or
    where what it takes longer is nobody's in particular. A kind that was corrected before, and
    takes less than that, is corrected for the sharding at hand."""
    compiled = plan.compiled
    if compiled is None or compiled.time is None:
        return ()
    took_seconds, planned_seconds = compiled.time.step_seconds, plan.estimate.step_seconds
    if max(took_seconds, planned_seconds) <= shares.SLOWER_PROGRAM * min(
        took_seconds, planned_seconds
    ):
        return ()
    least = shares.NOTICED_KERNEL * took_seconds
    is_slower, known = took_seconds > planned_seconds, plan.corrections
    found: list[Correction] = []
    for kind, members in _by_kind(plan).items():
        excess = sum(member.excess for member in members)
        if is_slower and excess >= least:
            found.append(_correction(plan, kind, members))
        elif not is_slower and known.of(kind) and excess <= -least:
            found.append(_of_sharding(plan, kind, _worst(members)))
    return tuple(found)


def _by_kind(plan: PlanRecord) -> Mapping[str, list[Took]]:
    units = plan.execution.units
    kinds: dict[str, list[Took]] = defaultdict(list)
    for took in _took(plan):
        kinds[kind_of(units, units.units[took.unit])].append(took)
    return kinds


def _took(plan: PlanRecord) -> Iterator[Took]:
    assert plan.compiled is not None and plan.compiled.time is not None
    compiled = plan.compiled.time.by_unit
    entries, units = plan.breakdown.operators, plan.execution.units
    spared = {
        entry.unit: entry.computing_seconds
        for entry in entries
        if not compiled.get(entry.unit, _NOTHING).compute
    }
    shared, again = _shared_out(units, spared), plan.execution.recomputed
    for entry in entries:
        own = compiled.get(entry.unit, _NOTHING)
        yield Took(
            entry.unit,
            max(0.0, own.compute - shared.get(entry.unit, 0.0)),
            entry.computing_seconds,
            max(0.0, own.communication - entry.moving_seconds),
            2 if entry.unit in again else 1,
        )


def _shared_out(units: UnitGraph, spared: Mapping[int, float]) -> Mapping[int, float]:
    """By unit the seconds of neighbours that have no kernel: XLA fused each with some of its
    readers or producers, which ones is not told, so that it is set against all."""
    found: dict[int, float] = defaultdict(float)
    for index, seconds in spared.items():
        unit = units.units[index]
        near = {r for value in unit.outputs for r in units.readers.get(value, ())}
        near |= {p for value in unit.reads if (p := units.producer.get(value)) is not None}
        for other in near - {index}:
            found[other] += seconds
    return found


def _worst(members: list[Took]) -> Took:
    return max(members, key=lambda member: abs(member.excess))


def _correction(plan: PlanRecord, kind: str, members: list[Took]) -> Correction:
    """Where equal units move what nobody planned, or were corrected before, that is of the sharding
    at hand alone."""
    worst, excess = _worst(members), sum(member.excess for member in members)
    unplanned = sum(member.unplanned for member in members)
    priced = sum(member.priced for member in members)
    if plan.corrections.of(kind) or not priced or unplanned >= shares.UNPLANNED_TRANSFERS * excess:
        return _of_sharding(plan, kind, worst)
    return Correction(kind, _name(plan, worst), factor=1.0 + excess / priced)


def _of_sharding(plan: PlanRecord, kind: str, took: Took) -> Correction:
    entry = plan.breakdown.operators[took.unit]
    name = _name(plan, took)
    return Correction(kind, name, entry.reads, entry.results, seconds=took.seconds_of_run)


def _name(plan: PlanRecord, took: Took) -> str:
    return plan.decisions[took.unit].opcode.removeprefix("stablehlo.")
