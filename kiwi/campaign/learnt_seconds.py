"""Corrections of prices from a plan's compiled program, kernel by kernel.

The schedule of a program is attributed to the plan's units by their scopes
(`kiwi.xla.simulated.seconds_by_unit`). If the program takes longer than the plan, units that take
much longer than their price are corrected (`kiwi.corrections`):

- Unplanned transfers, with the unit's additional computation, belong to the sharding that caused
  them: XLA's partitioner gathers an operand that the plan shards.
- Additional computation alone is a factor of the kind's price in every sharding.

A fused kernel names only the unit of its root. The time that its neighbours no longer take is
subtracted.
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
    """A program's time for a unit, and its price, in seconds of a step.

    - `computing`: the time of kernels, less the time that neighbours no longer take. `priced`: the
      planned time.
    - `unplanned`: the time of transfers beyond the planned ones.
    - `runs`: how often it is computed in a step, not counting iterations of loops.
    """

    unit: int
    computing: float
    priced: float
    unplanned: float
    runs: int

    @property
    def excess(self) -> float:
        """The time beyond its price; negative if it takes less."""
        return self.computing + self.unplanned - self.priced

    @property
    def seconds_of_run(self) -> float:
        """Seconds of one computation."""
        return (self.computing + self.unplanned) / self.runs


def learnt(plan: PlanRecord) -> tuple[Correction, ...]:
    """The corrections from a plan's program. There are none if it agrees with the plan, or if no
    unit in particular causes the difference. A kind that was corrected before and takes less than
    that is corrected for its present sharding."""
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
    planned = {decision.unit: decision.priced for decision in plan.decisions}
    spared = {
        unit: costs.computing_seconds
        for unit, costs in planned.items()
        if not compiled.get(unit, _NOTHING).compute
    }
    shared, again = _shared_out(plan.execution.units, spared), plan.execution.recomputed
    for unit, costs in planned.items():
        measured = compiled.get(unit, _NOTHING)
        yield Took(
            unit,
            max(0.0, measured.compute - shared.get(unit, 0.0)),
            costs.computing_seconds,
            max(0.0, measured.communication - costs.moving_seconds),
            2 if unit in again else 1,
        )


def _shared_out(units: UnitGraph, spared: Mapping[int, float]) -> Mapping[int, float]:
    """By unit, the seconds of neighbours without a kernel. XLA fused each with some of its readers
    or producers. It is not known with which, so the seconds are subtracted from all."""
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
    """The correction of a kind. It is for the present sharding alone if equal units have unplanned
    transfers, or were corrected before."""
    worst, excess = _worst(members), sum(member.excess for member in members)
    unplanned = sum(member.unplanned for member in members)
    priced = sum(member.priced for member in members)
    if plan.corrections.of(kind) or not priced or unplanned >= shares.UNPLANNED_TRANSFERS * excess:
        return _of_sharding(plan, kind, worst)
    return Correction(kind, _name(plan, worst), factor=1.0 + excess / priced)


def _of_sharding(plan: PlanRecord, kind: str, took: Took) -> Correction:
    decision = plan.decisions[took.unit]
    name = _name(plan, took)
    return Correction(kind, name, decision.reads, decision.results, seconds=took.seconds_of_run)


def _name(plan: PlanRecord, took: Took) -> str:
    return plan.decisions[took.unit].opcode.removeprefix("stablehlo.")
