"""The predicted figures of a plan, all from the independent evaluator."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kiwi.hlo.units import UnitGraph
from kiwi.memory.heap import packed_bytes
from kiwi.problem.build import PlanningProblem
from kiwi.problem.predicted_collectives import predicted_uses
from kiwi.problem.solved import Solved
from kiwi.problem.time_provenance import time_shares
from kiwi.solver import evaluate
from kiwi.solver.problem import Interval
from kiwi.xla.collectives import AxisUse, CollectiveUse, by_kind


@dataclass(frozen=True)
class Held:
    """What the model says is in memory, when: half-open intervals of unit times, with bytes.

    `kind` "argument": `index` is a value. "result": what unit `index` yields, and what it
    needs while it runs. "copy": an operand of unit `index` in another layout, also while it is
    kept for later units.
    """

    kind: str
    index: int
    intervals: tuple[Interval, ...]

    def bytes_at(self, time: int) -> int:
        """Bytes held while the unit at `time` runs."""
        return sum(i.bytes for i in self.intervals if i.start <= time < i.end)


@dataclass(frozen=True)
class Estimate:
    """Predicted time and memory of one step on one device.

    `step_seconds` is the sum of the four parts: first computations, their own collectives,
    resharding between operators, and everything done a second time. `memory_bytes[t]` is what
    is alive while unit t runs, largest at `peak_unit`, and `held` what it consists of;
    `peak_bytes` is what XLA's heap needs for it (`kiwi.memory.heap`), a little more.
    `collective_uses` by kind and mesh axes, as in `CompiledProgram`. `time_shares`: which share of
    the time was measured, and so on, see `kiwi.problem.time_provenance`; empty where it is not
    known.
    """

    step_seconds: float
    compute_seconds: float
    communication_seconds: float
    resharding_seconds: float
    recompute_seconds: float
    peak_bytes: int
    peak_unit: int
    memory_bytes: tuple[int, ...]
    collective_uses: tuple[AxisUse, ...]
    held: tuple[Held, ...]
    time_shares: Mapping[str, float] = field(default_factory=dict)

    @property
    def collectives(self) -> Mapping[str, CollectiveUse]:
        """By kind, over all axes."""
        return by_kind(self.collective_uses)


def estimate_solution(solved: Solved) -> Estimate:
    """Prices a solution with `kiwi.solver.evaluate`."""
    restricted = solved.restricted
    held = tuple(held_of(restricted))
    evaluation = evaluate(restricted.problem, [0] * len(restricted.problem.nodes))
    parts = evaluation.parts
    return Estimate(
        evaluation.cost,
        parts.get("compute", 0.0),
        parts.get("communication", 0.0),
        parts.get("resharding", 0.0),
        parts.get("recompute", 0.0),
        max(evaluation.peak_bytes, allocated_bytes(held, restricted.units)),
        evaluation.peak_time,
        tuple(int(b) for b in evaluation.usage_bytes),
        predicted_uses(solved),
        held,
        time_shares(solved),
    )


def allocated_bytes(held: Sequence[Held], units: UnitGraph) -> int:
    """What XLA allocates: whatever the whole step holds, and a heap for the rest.

    A result that takes over an argument's buffer belongs to that buffer, which is held
    throughout.
    """
    end = len(units.units)
    takes_over = {units.producer[r] for r in units.aliased_results}
    throughout, heap = 0, []
    for owner in held:
        for interval in owner.intervals:
            if owner.kind == "argument" or (interval.start == 0 and interval.end == end):
                throughout += interval.bytes
            elif owner.kind != "result" or owner.index not in takes_over or interval.end < end:
                heap.append(interval)
    return throughout + packed_bytes(heap)


def held_of(restricted: PlanningProblem) -> Iterator[Held]:
    """The nodes of a problem with one option each, as `Held`."""
    owners = [
        *(("argument", source.value) for source in restricted.sources),
        *(("result", node.unit) for node in restricted.unit_nodes),
        *(("copy", maker) for maker in restricted.makers),
    ]
    for (kind, index), node in zip(owners, restricted.problem.nodes, strict=True):
        if node.usage[0]:
            yield Held(kind, index, node.usage[0])
