"""Barriers without which the compiled program would not be the plan, in whatever order XLA runs it:
for recomputed groups, repeated copies, large constants, and sums with late operands. Their reasons
and effects are in docs/how_it_works/memory.md, "Barriers".

A recomputed group waits for a trigger, as a rule the cotangent: the other operand of the group's
reader, computed after the last use of the group's first copy. If XLA fuses the cotangent's matmul
with an elementwise operator behind it, that operator's result is the trigger. Iterations need no
trigger if the first computation is in another loop, unless XLA could compute the group once for
all.

A repeated copy waits before its reader. If collectives overlap and there is memory for it, the copy
waits before the matmul ahead of its reader, and gradients of parameters then wait before the second
last matmul. Constants that maps or reductions read do not wait: they are fused.

XLA also moves multiplications by a scalar from the operands of a matmul to its result if that is
smaller (`AlgebraicSimplifier::ScalarMultiplyReduction`), through changes of layout and of dtype but
through no barrier. An operand with other readers is then computed twice, scaled and unscaled. In
attention this is the gradient of the scores, of which the heap would hold two (`is_scaled`).
"""

import itertools
from collections.abc import Iterator, Sequence, Set

from kiwi.emit.execution import Execution
from kiwi.hlo.equation_kinds import is_map
from kiwi.hlo.graph import HloGraph, Phase
from kiwi.hlo.in_place import is_of_library
from kiwi.hlo.large_operators import early_values
from kiwi.hlo.loops import ENTRIES, EXITS, SLICE, STACK
from kiwi.hlo.program import Literal
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.memory.loop_bodies import Dataflow, LoopBody, OperandRead, ScheduledUnit
from kiwi.mesh import TensorSharding

SLACK = 1
"""The number of latest steps whose results a step reads without a barrier."""

_CopyMade = tuple[int, int, TensorSharding]
"""A value, the step that computed it, and the layout that it is read in."""

_SCALES = frozenset({"mul", "div"})
_PASSES = frozenset({"transpose", "reshape", "convert_element_type", "copy"})


def large_constants(graph: UnitGraph, unit: Unit) -> tuple[int, ...]:
    """The equations that expand a scalar to a large constant, which the unit's root reads.

    The zeros that a scatter adds to are as large as the gradient of an embedding.
    """
    if is_map(graph.graph, unit.root):
        return ()
    return tuple(filter(graph.graph.program.is_large_constant, unit.equations))


def makes_constants_early(execution: Execution, unit: Unit) -> bool:
    """Whether XLA would hold large constants of a unit from the start of the step."""
    graph = execution.units
    if not execution.facts.makes_constants_early or not large_constants(graph, unit):
        return False
    return "reduce" not in graph.graph.opcodes[unit.root]


def early_summands(execution: Execution, flow: Dataflow, step: ScheduledUnit) -> set[int]:
    """The results of library calls that only this step reads, if the step also waits for a result
    that is younger by more than `SLACK` steps."""
    graph, position = execution.units, step.position
    if not execution.facts.fusion.joins_maps_to_matmuls or execution.mesh.size == 1:
        return set()
    if not is_map(graph.graph, graph.units[step.unit].root):
        return set()
    source = {v: k for v, k in flow.source[position].items() if k >= 0}
    latest = max(source.values(), default=-1)
    return {
        value
        for value, computed in source.items()
        if latest - computed > SLACK
        and graph.readers[value] == (step.unit,)
        and is_of_library(graph.graph, graph.units[graph.producer[value]])
    }


class RecomputedGroup:
    """Recomputations that follow each other in one loop body, and the step behind them, if any."""

    def __init__(self, members: Sequence[ScheduledUnit], reader: ScheduledUnit | None) -> None:
        self.members, self.reader = members, reader
        self.positions = frozenset(member.position for member in members)

    def inputs(self, flow: Dataflow) -> set[int]:
        """The operands of the group that it does not compute."""
        reads = (pair for m in self.members for pair in flow.source[m.position].items())
        return {value for value, source in reads if source not in self.positions}

    def is_apart(self, units: UnitGraph, flow: Dataflow, body: LoopBody) -> bool:
        """Whether XLA computes it again in each iteration anyway."""
        if {m.unit for m in self.members} & {s.unit for s in body.steps() if not s.is_again}:
            return False
        program = units.graph.program
        outside = {None, *program.loops_around(body.loop)[:-1]}
        return any(program.loop_of(value) not in outside for value in self.inputs(flow))


def recomputed_groups(body: LoopBody) -> Iterator[RecomputedGroup]:
    """The groups of a body, in order. A loop between two recomputations separates them."""
    members: list[ScheduledUnit] = []
    for item in body.items:
        is_step = isinstance(item, ScheduledUnit)
        if is_step and item.is_again and not item.is_fetched:
            members.append(item)
            continue
        if members:
            yield RecomputedGroup(members, item if is_step else None)
        members = []
    if members:
        yield RecomputedGroup(members, None)


class LiveResults:
    """The results of earlier steps that are still to be read."""

    def __init__(self, execution: Execution, flow: Dataflow) -> None:
        self._execution = execution
        self._graph, self._flow = execution.units, flow
        self._steps = execution.schedule.steps
        self._shared = execution.kernels.shared
        self._early = early_values(execution.units)
        self._joins_maps = execution.facts.fusion.joins_maps_to_matmuls

    def of_step(self, computed: int, position: int) -> list[int]:
        """The results of a step of the same body that this position or a later one reads."""
        unit = self._graph.units[self._steps[computed]]
        if self._graph.border(unit) in (SLICE, STACK):
            return []
        last_read = self._flow.last_read
        return [v for v in unit.outputs if last_read.get((v, computed), -1) >= position]

    def latest(
        self,
        position: int,
        before: Sequence[int],
        slack: int = 0,
        beside: frozenset[int] = frozenset(),
    ) -> set[int]:
        """The latest result that is older than `slack` steps and not in `beside`, if there is one.

        `before`: the earlier steps of the same body.
        """
        for earlier in reversed(before):
            if position - earlier > slack:
                alive = [v for v in self.of_step(earlier, position) if v not in beside]
                if alive:
                    return {alive[0]}
        return set()

    def computed_at(self, value: int, before: Sequence[int]) -> int:
        """The latest of the earlier steps that computes a value."""
        return max(k for k in before if value in self._graph.units[self._steps[k]].outputs)

    def late_matmul(
        self, position: int, before: Sequence[int], until: int, awaited: int
    ) -> set[int]:
        """A live result that depends on the latest matmul before `until` on which the step
        `awaited` does not depend, if there is one."""
        needed = self._needed_by(awaited)
        early = (k for k in before if k < until and k not in needed)
        late = self._late(position, before, [k for k in early if self._is_matmul(self._unit(k))])
        return {value for _, value in itertools.islice(late, 1)}

    def late_gradients(
        self, position: int, before: Sequence[int], until: int, heavy: Set[int], awaited: set[int]
    ) -> set[int]:
        """Live results that wait for the matmuls and reductions of the backward pass in front of
        `until`, or for `heavy` steps, which a step does not wait for: the gradients of parameters,
        and what the forward pass yields beside them. Without those in `awaited`, to which they are
        added."""
        needed = self._needed_by(position) | awaited
        gradients = [
            k
            for k in before
            if k not in needed
            and (k in heavy or (k < until and self._may_be_gradient(self._unit(k))))
        ]
        late = dict(self._late(position, before, gradients))
        awaited.update(late)
        return set(late.values())

    def heavy_readers(self, share: float) -> frozenset[int]:
        """The steps of the forward pass that read one of its results which the backward pass reads,
        too, and which holds at least this share of all that is left to it."""
        storage, mesh_shape = self._execution.kernels.storage, self._execution.mesh.shape
        size_bytes = {
            value: storage.local_bytes(value, self._execution.layouts[value], mesh_shape)
            for value in self._left_to_backward()
        }
        least_bytes = share * sum(size_bytes.values())
        return frozenset(
            position
            for position, source in enumerate(self._flow.source)
            if self._unit(position).phase is Phase.FORWARD
            and any(size_bytes.get(value, -1) >= least_bytes for value in source)
        )

    def _is_backward(self, position: int) -> bool:
        return position < len(self._steps) and self._unit(position).phase is Phase.BACKWARD

    def _left_to_backward(self) -> set[int]:
        """The values of the forward pass that steps of the backward pass read."""
        return {
            value
            for (value, computed), last in self._flow.last_read.items()
            if computed >= 0
            and self._unit(computed).phase is Phase.FORWARD
            and self._is_backward(last)
        }

    def _late(
        self, position: int, before: Sequence[int], steps: Sequence[int]
    ) -> Iterator[tuple[int, int]]:
        """Steps, the latest first, each with a live result that depends on it, if there is one."""
        for earlier in reversed(steps):
            results = (self.of_step(k, position) for k in self._waiting_for(earlier, before))
            if alive := next(filter(None, results), None):
                yield earlier, alive[0]

    def _unit(self, position: int) -> Unit:
        return self._graph.units[self._steps[position]]

    def _is_matmul(self, unit: Unit) -> bool:
        return is_of_library(self._graph.graph, unit)

    def _may_be_gradient(self, unit: Unit) -> bool:
        is_kernel = unit.index not in self._shared  # Otherwise computed with its operands.
        reduces = "reduce" in self._graph.graph.opcodes[unit.root] and is_kernel
        return unit.phase is Phase.BACKWARD and (reduces or self._is_matmul(unit))

    def _needed_by(self, position: int) -> set[int]:
        found, left = set[int](), [position]
        while left:
            new = {k for k in self._flow.source[left.pop()].values() if k >= 0} - found
            found |= new
            left.extend(new)
        return found

    def _waiting_for(self, first: int, before: Sequence[int]) -> Iterator[int]:
        found = {first}
        for position in before:
            if position in found or not found.isdisjoint(self._flow.source[position].values()):
                found.add(position)
                yield position

    def trigger(self, group: RecomputedGroup, before: Sequence[int]) -> set[int]:
        """The trigger of a group: the latest other operand of the group's reader that depends on a
        matmul, if the group's earlier results have all been read by then; otherwise the latest
        result."""
        first = group.members[0].position
        if group.reader is not None:
            read = self._flow.source[group.reader.position].items()
            parted, own = self._last_read_of_earlier(group), set(before)
            late = [(k, v) for v, k in read if k in own and k >= parted]
            late = [(k, v) for k, v in late if v in self.of_step(k, first) and not self._early[v]]
            if late:
                position, value = max(late)
                return self._of_fused_map(position, first, before) or {value}
        return self.latest(first, before)

    def _of_fused_map(self, matmul: int, first: int, before: Sequence[int]) -> set[int]:
        """The live result of the first map that is fused with a matmul if no barrier separates
        them."""
        if not self._joins_maps or not self._is_matmul(self._unit(matmul)):
            return set()
        maps = (k for k in before if is_map(self._graph.graph, self._unit(k).root))
        readers = (k for k in maps if matmul in self._flow.source[k].values())
        alive = (v for k in readers for v in self.of_step(k, first))
        return set(itertools.islice(alive, 1))

    def _last_read_of_earlier(self, group: RecomputedGroup) -> int:
        """The last use of the results of the group's earlier computations."""
        first = group.members[0].position
        results = {o for m in group.members for o in self._graph.units[m.unit].outputs}
        reads = (k for k in range(first) if results & self._flow.source[k].keys())
        return max(reads, default=-1)


def copies_made_again(execution: Execution, flow: Dataflow, body: LoopBody) -> dict[int, set[int]]:
    """By position of a step, the values whose copies may be made again from there on.

    That is the step that reads the copy. If copies come ahead (`Execution.copies_ahead`), it is the
    last matmul before the reader, provided that no step between the two reads the value, and no
    loop is between.
    """
    made, found = set[_CopyMade](), dict[int, set[int]]()
    behind: list[ScheduledUnit] = []
    for item in body.items:
        if isinstance(item, LoopBody):
            behind = []
            continue
        for value in set() if item.is_again else _read_again(execution, flow, item, made):
            start = _start_of_copy(execution, flow, value, behind)
            position = item.position if start is None else start.position
            found.setdefault(position, set()).add(value)
        behind.append(item)
    return found


def _start_of_copy(
    execution: Execution, flow: Dataflow, value: int, behind: Sequence[ScheduledUnit]
) -> ScheduledUnit | None:
    """The step at which a copy begins: an earlier step right before the reader; None for the reader
    itself."""
    if not execution.copies_ahead:
        return None
    graph, is_beside_matmul = execution.units, False
    for step in reversed(behind):
        unit = graph.units[step.unit]
        if value in flow.source[step.position]:
            return None
        is_beside_matmul |= is_of_library(graph.graph, unit)
        may_start = not step.is_again and graph.border(unit) not in ENTRIES | EXITS
        if is_beside_matmul and may_start:
            return step
    return None


def _read_again(
    execution: Execution, flow: Dataflow, step: ScheduledUnit, made: set[_CopyMade]
) -> set[int]:
    """The values that a step reads in a layout in which an earlier step has read them. `made` is
    what first computations of the body have read so far; the step's reads are added to it.

    Slices do not count: XLA takes them as it reads.
    """
    sources, unit = flow.source[step.position], execution.units.units[step.unit]
    found, shape = set(), execution.mesh.shape
    pairs = zip(unit.rule.reads, execution.reads[step.unit], strict=True)
    for read, ((value, _), wanted) in enumerate(pairs):
        stored = execution.layouts[value]
        if wanted == stored or wanted.shard_count(shape) > stored.shard_count(shape):
            continue
        key = (value, sources.get(value, -1), wanted)
        if key in made and OperandRead(step.unit, read) not in execution.kept_copies:
            found.add(value)
        made.add(key)
    return found


def is_scaled(graph: HloGraph, unit: Unit) -> bool:
    """Whether a unit's result is a product with a scalar constant."""
    program = graph.program

    def is_scalar(operand: int | Literal) -> bool:
        producer = None if isinstance(operand, Literal) else program.values[operand].producer
        filled = None if producer is None else program.equations[producer].filled_with
        return isinstance(operand, Literal) or filled is not None

    index: int | None = unit.root
    while index is not None and index in unit.equations:
        equation = program.equations[index]
        if equation.name in _SCALES:
            return any(map(is_scalar, equation.inputs))
        if equation.name not in _PASSES:
            return False
        (operand,) = equation.reads
        index = program.values[operand].producer
    return False
