"""Corrections of prices from a plan's compiled program, kernel by kernel.

The scopes of a program's instructions attribute its simulated time to the plan's units
(`kiwi.xla.simulated.seconds_by_unit`). If the program takes longer than the plan, the prices of
kinds of units that take much longer than priced are corrected (`kiwi.corrections`):

- If the unit has unplanned transfers, only the price of its present sharding is corrected.
  Such transfers arise where XLA's partitioner gathers an operand that the plan shards.
- If only the computation takes longer, the kind's price is multiplied by a factor in every
  sharding.

A fused kernel names only the unit of its root. The prices of neighbours that have no kernel of
their own are therefore subtracted from the root's time.
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
    """A unit's time in the compiled program and its price in the plan, in seconds of a step.

    - `computing`: the time of the unit's kernels, without the prices of units fused with it.
    - `priced`: the planned time of its computation.
    - `unplanned`: the time of its transfers beyond the planned time of transfers.
    - `runs`: the number of times that a step computes the unit, 1 or 2, without iterations of
      loops.
    """

    unit: int
    computing: float
    priced: float
    unplanned: float
    runs: int

    @property
    def excess(self) -> float:
        """The seconds beyond the price; negative if the unit takes less."""
        return self.computing + self.unplanned - self.priced

    @property
    def seconds_of_run(self) -> float:
        """The seconds of one computation of the unit."""
        return (self.computing + self.unplanned) / self.runs


def learnt(plan: PlanRecord) -> tuple[Correction, ...]:
    """Returns the corrections that a plan's program teaches.

    There are none if the program agrees with the plan, or if no kind of unit in particular causes
    the difference. If the program is faster than planned, a kind that was corrected before and
    takes less than its corrected price gets a correction for its present sharding.
    """
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
    corrections: list[Correction] = []
    for kind, members in _by_kind(plan).items():
        excess = sum(member.excess for member in members)
        if is_slower and excess >= least:
            corrections.append(_correction(plan, kind, members))
        elif not is_slower and known.of(kind) and excess <= -least:
            corrections.append(_of_sharding(plan, kind, _worst(members)))
    return tuple(corrections)


def _by_kind(plan: PlanRecord) -> Mapping[str, list[Took]]:
    """Returns the times of all units, by kind of unit."""
    units = plan.execution.units
    kinds: dict[str, list[Took]] = defaultdict(list)
    for took in _took(plan):
        kinds[kind_of(units, units.units[took.unit])].append(took)
    return kinds


def _took(plan: PlanRecord) -> Iterator[Took]:
    """Yields the time of each unit in the plan's compiled program."""
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
    """Returns, for each unit, the prices in seconds of neighbours without a kernel of their own.

    XLA has fused such a neighbour with some of its readers or producers. The program does not show
    with which, so the price is subtracted from all of them.

    - `spared`: the price in seconds of each unit without a kernel.
    """
    shared_seconds: dict[int, float] = defaultdict(float)
    for index, seconds in spared.items():
        unit = units.units[index]
        neighbours = {reader for value in unit.outputs for reader in units.readers.get(value, ())}
        neighbours |= {
            producer for value in unit.reads if (producer := units.producer.get(value)) is not None
        }
        for other in neighbours - {index}:
            shared_seconds[other] += seconds
    return shared_seconds


def _worst(members: list[Took]) -> Took:
    """Returns the unit whose time differs most from its price."""
    return max(members, key=lambda member: abs(member.excess))


def _correction(plan: PlanRecord, kind: str, members: list[Took]) -> Correction:
    """Returns the correction of a kind of unit. It holds for the present sharding alone if units of
    the kind have many unplanned transfers, or if the kind was corrected before."""
    worst, excess = _worst(members), sum(member.excess for member in members)
    unplanned = sum(member.unplanned for member in members)
    priced = sum(member.priced for member in members)
    if plan.corrections.of(kind) or not priced or unplanned >= shares.UNPLANNED_TRANSFERS * excess:
        return _of_sharding(plan, kind, worst)
    return Correction(kind, _name(plan, worst), factor=1.0 + excess / priced)


def _of_sharding(plan: PlanRecord, kind: str, took: Took) -> Correction:
    """Returns the correction of a kind for a unit's present sharding alone."""
    decision = plan.decisions[took.unit]
    name = _name(plan, took)
    return Correction(kind, name, decision.reads, decision.results, seconds=took.seconds_of_run)


def _name(plan: PlanRecord, took: Took) -> str:
    return plan.decisions[took.unit].opcode.removeprefix("stablehlo.")
