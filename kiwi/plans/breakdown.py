"""The decision for each operator, and the operator's part of the plan's time and memory.

The seconds of all entries add up to the sum of the estimate's `step_seconds` and `hidden_seconds`.
The bytes that the entries hold at a point of time add up to the estimate's `memory_bytes` there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import jax

from kiwi.errors import PlanMismatchError
from kiwi.interval import Interval
from kiwi.kernels.user_recomputation import dropped_by_user
from kiwi.memory.loop_bodies import OperandRead
from kiwi.memory.residency import Residency
from kiwi.memory.timeline import Buffer
from kiwi.mesh import TensorSharding
from kiwi.messages import topics
from kiwi.problem.alternatives import Alternative, local_alternatives
from kiwi.problem.build import KeptCopies, PlanningProblem
from kiwi.problem.exclusions import exclusions
from kiwi.problem.solved import Solved
from kiwi.problem.translation import Choices, UnitChoice
from kiwi.timings import timed

PARTS = ("compute", "communication", "resharding", "recompute")
"""The kinds of time, which are also parts of `Estimate`."""


@dataclass(frozen=True)
class SourceEntry:
    """An argument or captured constant. `held` lists the intervals in which its buffer counts, in
    unit indices."""

    value: int
    sharding: TensorSharding
    held: tuple[Interval, ...]


@dataclass(frozen=True)
class OperatorCosts:
    """An operator's part of the plan's time and memory, and the cost of its other options.

    - `seconds`: the seconds per step by kind (`PARTS`): the operator's own work, its collectives,
      the resharding of its operands, and everything that runs a second time.
    - `held`: the intervals in which its results exist.
    - `copies`: the intervals in which resharded copies of its operands exist, including copies that
      it makes for later units.
    - `option_count`: the number of pairs of strategy and residency to choose from.
    - `alternatives`: the cheapest other options if nothing else changed, cheapest first.
    - `excluded`: sentences that say why further shardings and recomputation were impossible.
    """

    seconds: Mapping[str, float]
    held: tuple[Interval, ...]
    copies: tuple[Interval, ...]
    option_count: int
    alternatives: tuple[Alternative, ...]
    excluded: tuple[str, ...]

    @property
    def computing_seconds(self) -> float:
        """The seconds of kernels, recomputation included."""
        return self.seconds["compute"] + self.seconds["recompute"]

    @property
    def moving_seconds(self) -> float:
        """The seconds of transfers: the operator's own collectives, and the resharding of its
        operands."""
        return self.seconds["communication"] + self.seconds["resharding"]

    @property
    def total_seconds(self) -> float:
        """The seconds of all kinds together."""
        return sum(self.seconds.values())


@dataclass(frozen=True)
class Decision:
    """One materialised operator: its identity, the decision for it, and its costs.

    The operator:

    - `unit`: its index in execution order.
    - `opcode`: its StableHLO opcode.
    - `absorbed`: the opcodes of the operators that are fused into it.
    - `phase`: "forward", "backward" or "update".
    - `name_stack`: its name scope.
    - `source_line`: its line in the user's code; its name scope if no line is known.
    - `shape`: the shape of its first result; empty if it has none.
    - `trips`: how often it is computed in a step, without recomputation.

    The decision:

    - `sharding`: the sharding of its first result; None if it has no result.
    - `reads`: the layout in which it expects each operand.
    - `results`: the layout of each result.
    - `residency`: "keep", "recompute" or "offload". Results that the function's own
      `jax.checkpoint` computes again count as "recompute", if the plan respects the checkpoint.
    - `recompute_at`: the unit before which it runs again, or None.
    - `end`: its last reader, or the later time until which its results are kept.
    - `fetch_at`: the unit before which its result is fetched from the host, or None.
    - `kept_reads`: the numbers of the reads that use an earlier unit's copy.
    - `kept_reads_again`: the numbers of the reads that do so when the unit is recomputed.

    Planners of schedules decide about recomputation and fetches in `plan.execution.schedule`.

    The costs:

    - `seconds`: the predicted time on one device, collectives included, without recomputation.
    - `bytes`: the local bytes of its results; in a loop, the results of one iteration.
    - `costs`: its part of the estimate. None while the step is planned, and for schedules.
    """

    unit: int
    opcode: str
    absorbed: tuple[str, ...]
    phase: str
    name_stack: str
    source_line: str
    shape: tuple[int, ...]
    trips: float
    sharding: jax.sharding.PartitionSpec | None
    reads: tuple[TensorSharding, ...]
    results: tuple[TensorSharding, ...]
    residency: str
    recompute_at: int | None
    end: int
    fetch_at: int | None
    kept_reads: tuple[int, ...]
    kept_reads_again: tuple[int, ...]
    seconds: float
    bytes: int
    costs: OperatorCosts | None = None

    @property
    def priced(self) -> OperatorCosts:
        """The costs of an operator that has some; asserts that it has."""
        assert self.costs is not None
        return self.costs

    @property
    def kept_copies(self) -> KeptCopies:
        """The reads that use an earlier unit's copy."""
        reads = {False: self.kept_reads, True: self.kept_reads_again}
        return frozenset(OperandRead(self.unit, n, again) for again in reads for n in reads[again])

    @property
    def choice(self) -> UnitChoice:
        """The decision in terms that all problems of the step share."""
        times = Residency(self.recompute_at, self.end, self.fetch_at)
        return UnitChoice(self.reads, self.results, times)


@dataclass(frozen=True)
class CostBreakdown:
    """A plan split by argument and by operator, in execution order.

    Each operator has its costs once the plan is made. Plans of schedules have no costs.
    """

    sources: tuple[SourceEntry, ...]
    operators: tuple[Decision, ...]

    @property
    def has_costs(self) -> bool:
        """Whether each operator has its part of the estimate."""
        return all(decision.costs is not None for decision in self.operators)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers of the entries, over unit indices."""
        owned = [("argument", source.value, source.held) for source in self.sources]
        owned += [("result", operator.unit, operator.priced.held) for operator in self.operators]
        owned += [("copy", operator.unit, operator.priced.copies) for operator in self.operators]
        return tuple(
            Buffer(i.start, i.end, i.bytes, kind, index)
            for kind, index, held in owned
            for i in held
        )

    @property
    def choices(self) -> Choices:
        """The decisions, in terms that all problems of the step share."""
        shardings = tuple(source.sharding for source in self.sources)
        return Choices(shardings, tuple(decision.choice for decision in self.operators))

    def solution_of(self, planning: PlanningProblem) -> tuple[int, ...]:
        """The solution of a problem that makes the decisions of the breakdown.

        **Raises:** `PlanMismatchError` if the problem does not offer one of the choices, which may
        happen if another version of Kiwi made the plan.
        """
        solution = self.choices.solution_of(planning)
        if solution is None:
            raise PlanMismatchError(
                "The plan's choices are not all among today's options.",
                topic=topics.OTHER_OPTIONS,
            )
        return solution


@timed("breakdown")
def build_breakdown(solved: Solved) -> CostBreakdown:
    """Returns the breakdown of a solution: its decisions, and its seconds and memory by
    operator."""
    planning, restricted = solved.problem, solved.restricted
    nodes = restricted.problem.nodes
    first_unit = len(restricted.sources)
    seconds = _seconds(restricted)
    held: dict[tuple[str, int], list[Interval]] = {}
    for buffer in restricted.buffers:
        interval = Interval(int(buffer.start), int(buffer.end), int(buffer.bytes))
        held.setdefault((buffer.kind, buffer.index), []).append(interval)
    sources = tuple(
        SourceEntry(source.value, source.shardings[0], nodes[k].usage[0])
        for k, source in enumerate(restricted.sources)
    )
    nearby = local_alternatives(planning, solved.solution, restricted)

    def costs(unit: int) -> OperatorCosts:
        offered = planning.unit_nodes[unit]
        return OperatorCosts(
            seconds=seconds[first_unit + unit],
            held=tuple(held.get(("result", unit), ())),
            copies=tuple(held.get(("copy", unit), ())),
            option_count=len(offered.strategies) * len(offered.residency.options),
            alternatives=nearby[unit],
            excluded=exclusions(planning, unit),
        )

    return CostBreakdown(
        sources,
        tuple(replace(decision, costs=costs(decision.unit)) for decision in decisions(solved)),
    )


def _seconds(restricted: PlanningProblem) -> list[dict[str, float]]:
    """Returns the seconds of each node by kind: its own parts, and the parts of the edges that lead
    into it. A copy's seconds belong to its reader. A kept copy saves the reader's resharding, which
    the edge from the producer prices."""
    by_node = []
    first_unit = len(restricted.sources)
    behind = first_unit + len(restricted.unit_nodes)
    for node in restricted.problem.nodes:
        parts = {kind: float(part[0]) for kind, part in node.parts.items()}
        by_node.append({**dict.fromkeys(PARTS, 0.0), **parts})
    for edge in restricted.problem.edges:
        head = edge.head
        if head >= behind:
            head = first_unit + restricted.copies[head - behind].unit
        for kind, part in edge.parts.items():
            by_node[head][kind] += float(part[edge.cell(0, 0)])
    return by_node


def decisions(solved: Solved) -> tuple[Decision, ...]:
    """Returns one decision per unit, in execution order, without costs."""
    planning = solved.problem
    graph, dropped = planning.units.graph, dropped_by_user(planning.units)
    kept_reads: dict[tuple[int, bool], list[int]] = {}
    for read in sorted(solved.kept):
        kept_reads.setdefault((read.unit, read.is_again), []).append(read.number)
    unit_decisions = []
    for unit, (strategy, residency) in zip(planning.units.units, solved.choices, strict=True):
        root = graph.program.equations[unit.root]
        first_result = graph.program.values[unit.outputs[0]] if unit.outputs else None
        layout = strategy.results[0] if strategy.results else None
        unit_decisions.append(
            Decision(
                unit=unit.index,
                opcode=graph.opcode_of(unit.root),
                absorbed=tuple(graph.opcode_of(equation) for equation in unit.equations[:-1]),
                phase=unit.phase.value,
                name_stack=root.name_stack,
                source_line=root.source_line or root.name_stack,
                shape=first_result.shape if first_result is not None else (),
                trips=planning.units.trips(unit),
                sharding=planning.mesh.partition_spec(layout) if layout is not None else None,
                reads=strategy.reads,
                results=strategy.results,
                residency=_residency_name(residency, is_dropped=unit.index in dropped),
                recompute_at=residency.recompute_at,
                end=residency.end,
                fetch_at=residency.fetch_at,
                kept_reads=tuple(kept_reads.get((unit.index, False), ())),
                kept_reads_again=tuple(kept_reads.get((unit.index, True), ())),
                seconds=strategy.seconds,
                bytes=strategy.result_bytes,
            )
        )
    return tuple(unit_decisions)


def _residency_name(residency: Residency, *, is_dropped: bool) -> str:
    return "recompute" if is_dropped and residency.name == "keep" else residency.name
