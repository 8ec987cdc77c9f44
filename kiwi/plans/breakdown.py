"""The decision for each operator, and its part of the plan's time and memory.

The seconds of all entries add up to the estimate's `step_seconds` and `hidden_seconds`. The bytes
that they hold at a point of time add up to its `memory_bytes` there.
"""

from collections.abc import Mapping
from dataclasses import dataclass

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
"""The kinds of time, as in `Estimate`."""


@dataclass(frozen=True)
class SourceEntry:
    """An argument or captured constant. `held` is the interval in which its buffer counts, in unit
    indices."""

    value: int
    sharding: TensorSharding
    held: tuple[Interval, ...]


@dataclass(frozen=True)
class OperatorEntry:
    """One unit.

    - `seconds`: per step, by kind (`PARTS`): its own work, its collectives, the resharding of its
      operands, and everything it does a second time.
    - `held`: when its results exist. `copies`: when resharded copies of its operands exist, also
      those that it makes and later units read.
    - `kept_reads`: the numbers of the reads served from an earlier unit's copy. `kept_reads_again`:
      those served so when the unit is recomputed.
    - `recompute_at`: the unit before which it runs again, or None. `end`: its last reader, or the
      later time until which its results are kept. `fetch_at`: the unit before which its result is
      fetched from the host, or None.
    - `reads`: the layout that it expects of each operand. `results`: the layout of each result.
    - `option_count`: the number of pairs of strategy and residency to choose from.
    - `alternatives`: the cheapest other options if nothing else changed, cheapest first.
    - `excluded`: why further shardings and recomputation were impossible.
    """

    unit: int
    seconds: Mapping[str, float]
    held: tuple[Interval, ...]
    copies: tuple[Interval, ...]
    recompute_at: int | None
    end: int
    reads: tuple[TensorSharding, ...]
    results: tuple[TensorSharding, ...]
    option_count: int
    alternatives: tuple[Alternative, ...]
    excluded: tuple[str, ...]
    kept_reads: tuple[int, ...] = ()
    fetch_at: int | None = None
    kept_reads_again: tuple[int, ...] = ()

    @property
    def computing_seconds(self) -> float:
        """Seconds of kernels, including those that run a second time."""
        return self.seconds["compute"] + self.seconds["recompute"]

    @property
    def moving_seconds(self) -> float:
        """Seconds of transfers: its own collectives, and the resharding of its operands."""
        return self.seconds["communication"] + self.seconds["resharding"]

    @property
    def kept_copies(self) -> KeptCopies:
        """The reads served from an earlier unit's copy."""
        reads = {False: self.kept_reads, True: self.kept_reads_again}
        return frozenset(OperandRead(self.unit, n, again) for again in reads for n in reads[again])

    @property
    def residency(self) -> Residency:
        """The residency of its results."""
        return Residency(self.recompute_at, self.end, self.fetch_at)

    @property
    def total_seconds(self) -> float:
        """Seconds of all kinds."""
        return sum(self.seconds.values())


@dataclass(frozen=True)
class CostBreakdown:
    """A plan's costs by argument and by operator, in execution order."""

    sources: tuple[SourceEntry, ...]
    operators: tuple[OperatorEntry, ...]

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers of the entries, over unit indices."""
        owned = [("argument", s.value, s.held) for s in self.sources]
        owned += [("result", o.unit, o.held) for o in self.operators]
        owned += [("copy", o.unit, o.copies) for o in self.operators]
        return tuple(
            Buffer(i.start, i.end, i.bytes, kind, index)
            for kind, index, held in owned
            for i in held
        )

    @property
    def choices(self) -> Choices:
        """The decisions."""
        units = (UnitChoice(each.reads, each.results, each.residency) for each in self.operators)
        return Choices(tuple(each.sharding for each in self.sources), tuple(units))

    def solution_of(self, planning: PlanningProblem) -> tuple[int, ...]:
        """The solution of a problem that the breakdown describes; raises `PlanMismatchError` if a
        choice is no longer among the options, as in a file of an older Kiwi."""
        found = self.choices.solution_of(planning)
        if found is None:
            raise PlanMismatchError(
                "The plan's choices are not all among today's options.",
                topic=topics.OTHER_OPTIONS,
            )
        return found


@timed("breakdown")
def build_breakdown(solved: Solved) -> CostBreakdown:
    """Splits the seconds and the memory of a solution by operator."""
    planning, restricted = solved.problem, solved.restricted
    nodes = restricted.problem.nodes
    first = len(restricted.sources)
    seconds = _seconds(restricted)
    held: dict[tuple[str, int], list[Interval]] = {}
    for buffer in restricted.buffers:
        held.setdefault((buffer.kind, buffer.index), []).append(buffer)
    sources = tuple(
        SourceEntry(source.value, source.shardings[0], nodes[k].usage[0])
        for k, source in enumerate(restricted.sources)
    )
    nearby = local_alternatives(planning, solved.solution, restricted)
    kept: dict[tuple[int, bool], list[int]] = {}
    for read in sorted(solved.kept):
        kept.setdefault((read.unit, read.is_again), []).append(read.number)
    operators = []
    for node, original in zip(restricted.unit_nodes, planning.unit_nodes, strict=True):
        strategy, residency = node.choice(0)
        operators.append(
            OperatorEntry(
                node.unit,
                seconds[first + node.unit],
                tuple(held.get(("result", node.unit), ())),
                tuple(held.get(("copy", node.unit), ())),
                residency.recompute_at,
                residency.end,
                strategy.reads,
                strategy.results,
                len(original.strategies) * len(original.residency.options),
                nearby[node.unit],
                exclusions(planning, node.unit),
                tuple(kept.get((node.unit, False), ())),
                residency.fetch_at,
                tuple(kept.get((node.unit, True), ())),
            )
        )
    return CostBreakdown(sources, tuple(operators))


def _seconds(restricted: PlanningProblem) -> list[dict[str, float]]:
    """The seconds of each node: its own parts, and those of the edges that lead into it. A copy's
    seconds belong to its reader. A kept copy saves the reader's resharding, which is priced by the
    edge from the producer."""
    found = []
    first = len(restricted.sources)
    behind = first + len(restricted.unit_nodes)
    for node in restricted.problem.nodes:
        own = {kind: float(part[0]) for kind, part in node.parts.items()}
        found.append({**dict.fromkeys(PARTS, 0.0), **own})
    for edge in restricted.problem.edges:
        head = edge.head
        if head >= behind:
            head = first + restricted.copies[head - behind].unit
        for kind, part in edge.parts.items():
            found[head][kind] += float(part[edge.cell(0, 0)])
    return found


@dataclass(frozen=True)
class Decision:
    """The decision for one materialised operator.

    - `opcode`: its StableHLO opcode. `absorbed`: the opcodes of the operators fused into it.
    - `source_line`: its line in the user's code; its name scope if no line is known.
    - `phase`: "forward", "backward" or "update".
    - `sharding`: the layout of its first result; None if it has no result.
    - `residency`: "keep", "recompute" or "offload". Results that the function's own
      `jax.checkpoint` computes again count as "recompute", if the plan respects it.
    - `seconds`: predicted time on one device, collectives included, without recomputation.
    - `bytes`: local bytes of its results; in a loop, those of one iteration.
    - `trips`: how often it is computed in a step, without recomputation.
    """

    opcode: str
    absorbed: tuple[str, ...]
    phase: str
    name_stack: str
    source_line: str
    shape: tuple[int, ...]
    sharding: jax.sharding.PartitionSpec | None
    residency: str
    seconds: float
    bytes: int
    trips: float = 1


def decisions(solved: Solved) -> tuple[Decision, ...]:
    """One decision per unit, in execution order."""
    planning = solved.problem
    graph, dropped = planning.units.graph, dropped_by_user(planning.units)
    found = []
    for unit, (strategy, residency) in zip(planning.units.units, solved.choices, strict=True):
        root = graph.program.equations[unit.root]
        first = graph.program.values[unit.outputs[0]] if unit.outputs else None
        layout = strategy.results[0] if strategy.results else None
        found.append(
            Decision(
                opcode=graph.opcode_of(unit.root),
                absorbed=tuple(graph.opcode_of(e) for e in unit.equations[:-1]),
                phase=unit.phase.value,
                name_stack=root.name_stack,
                source_line=root.source_line or root.name_stack,
                shape=first.shape if first is not None else (),
                sharding=planning.mesh.partition_spec(layout) if layout is not None else None,
                residency=_residency_name(residency, is_dropped=unit.index in dropped),
                seconds=strategy.seconds,
                bytes=strategy.result_bytes,
                trips=planning.units.trips(unit),
            )
        )
    return tuple(found)


def _residency_name(residency: Residency, *, is_dropped: bool) -> str:
    return "recompute" if is_dropped and residency.name == "keep" else residency.name
