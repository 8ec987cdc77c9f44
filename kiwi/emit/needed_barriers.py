"""Barriers without which the compiled program would differ from the plan, in whatever order XLA
runs it: for recomputed groups, repeated copies, large constants, and sums with late operands.
docs/how_it_works/memory.md, "Barriers", gives their reasons and effects.

A recomputed group waits for a trigger, as a rule the cotangent: the other operand of the group's
reader, computed after the last use of the group's first copy. If XLA fuses the cotangent's matmul
with an elementwise operator behind it, that operator's result is the trigger. Iterations need no
trigger if the first computation is in another loop, unless XLA could compute the group once for all
iterations.

A repeated copy has its barrier before its reader. If collectives overlap and there is memory for
it, the barrier of the copy is before the matmul ahead of the reader instead. Large constants have a
barrier, too, unless a map or a reduction reads them and so is fused with them.

XLA also moves multiplications by a scalar from an operand of a matmul to the matmul's result if the
result is smaller (`AlgebraicSimplifier::ScalarMultiplyReduction`). It does so through changes of
layout and of dtype, but not through a barrier. An operand with other readers is then computed
twice, scaled and unscaled. In attention this operand is the gradient of the scores, and the heap
would hold both (`is_scaled`).
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
"""A step reads the results of this many latest steps without a barrier; older results pass one."""

_CopyMade = tuple[int, int, TensorSharding]
"""A value, the position of the step that computed it (-1 for arguments), and the layout in which
the value is read."""

_SCALES = frozenset({"mul", "div"})
"""The primitives that may multiply by a scalar."""

_PASSES = frozenset({"transpose", "reshape", "convert_element_type", "copy"})
"""The primitives through which XLA moves a multiplication by a scalar."""


def large_constants(graph: UnitGraph, unit: Unit) -> tuple[int, ...]:
    """Returns the equations of a unit that expand a scalar to a large constant for the unit's root,
    none if the root is a map.

    An example are the zeros to which a scatter adds the gradient of an embedding.
    """
    if is_map(graph.graph, unit.root):
        return ()
    return tuple(filter(graph.graph.program.is_large_constant, unit.equations))


def makes_constants_early(execution: Execution, unit: Unit) -> bool:
    """Whether XLA would compute large constants of a unit at the start of the step, and hold them
    until the unit reads them."""
    graph = execution.units
    if not execution.facts.makes_constants_early or not large_constants(graph, unit):
        return False
    return "reduce" not in graph.graph.opcodes[unit.root]


def early_summands(execution: Execution, flow: Dataflow, step: ScheduledUnit) -> set[int]:
    """Returns the operands of a map that need a barrier because the map waits for a later operand.

    These are results of library calls that only this step reads, and that are more than `SLACK`
    steps older than the step's latest operand. Otherwise XLA would fuse the map into the library
    call, compute the call when the latest operand is there, and hold the call's operands until
    then. A gradient that is added to the gradient of a much later step is an example.
    """
    graph, position = execution.units, step.position
    if not execution.facts.fusion.joins_maps_to_matmuls or execution.mesh.size == 1:
        return set()
    if not is_map(graph.graph, graph.units[step.unit].root):
        return set()
    source = {value: k for value, k in flow.source[position].items() if k >= 0}
    latest = max(source.values(), default=-1)
    return {
        value
        for value, computed in source.items()
        if latest - computed > SLACK
        and graph.readers[value] == (step.unit,)
        and is_of_library(graph.graph, graph.units[graph.producer[value]])
    }


class RecomputedGroup:
    """Recomputations that directly follow each other in one loop body, and the step behind them,
    their reader, if there is one."""

    def __init__(self, members: Sequence[ScheduledUnit], reader: ScheduledUnit | None) -> None:
        self.members, self.reader = members, reader
        self.positions = frozenset(member.position for member in members)

    def inputs(self, flow: Dataflow) -> set[int]:
        """Returns the operands of the group that no member of it computes."""
        reads = (pair for member in self.members for pair in flow.source[member.position].items())
        return {value for value, source in reads if source not in self.positions}

    def is_apart(self, units: UnitGraph, flow: Dataflow, body: LoopBody) -> bool:
        """Whether XLA recomputes the group in each iteration without a barrier: its first
        computation is not in this body, and an operand depends on the iteration."""
        if {member.unit for member in self.members} & {
            step.unit for step in body.steps() if not step.is_again
        }:
            return False
        program = units.graph.program
        outside = {None, *program.loops_around(body.loop)[:-1]}
        return any(program.loop_of(value) not in outside for value in self.inputs(flow))


def recomputed_groups(body: LoopBody) -> Iterator[RecomputedGroup]:
    """Yields the recomputed groups of a body, in order. A loop between two recomputations separates
    groups."""
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
    """The results of earlier steps that later steps still read.

    In all methods, `position` is the position of a step in the schedule, and `before` has the
    positions of the earlier steps of the same body, ascending.
    """

    def __init__(self, execution: Execution, flow: Dataflow) -> None:
        self._execution = execution
        self._graph, self._flow = execution.units, flow
        self._steps = execution.schedule.steps
        self._shared = execution.kernels.shared
        is_early = early_values(execution.units)
        self._early = frozenset(itertools.compress(is_early, is_early.values()))
        self._joins_maps = execution.facts.fusion.joins_maps_to_matmuls

    def of_step(self, computed: int, position: int) -> list[int]:
        """Returns the results of the step at position `computed` that the step at `position`, or a
        later one, reads."""
        unit = self._graph.units[self._steps[computed]]
        if self._graph.border(unit) in (SLICE, STACK):
            return []
        last_read = self._flow.last_read
        return [value for value in unit.outputs if last_read.get((value, computed), -1) >= position]

    def latest(
        self,
        position: int,
        before: Sequence[int],
        slack: int = 0,
        beside: frozenset[int] = frozenset(),
    ) -> set[int]:
        """Returns the latest live result that is older than `slack` steps and not in `beside`; an
        empty set if there is none."""
        for earlier in reversed(before):
            if position - earlier > slack:
                alive = [value for value in self.of_step(earlier, position) if value not in beside]
                if alive:
                    return {alive[0]}
        return set()

    def computed_at(self, value: int, before: Sequence[int]) -> int:
        """Returns the position of the latest earlier step that computes a value."""
        return max(k for k in before if value in self._graph.units[self._steps[k]].outputs)

    def late_matmul(
        self, position: int, before: Sequence[int], until: int, awaited: int
    ) -> set[int]:
        """Returns a live result that depends on a late matmul; an empty set if there is none.

        The matmul is the latest one before position `until` on which the step at position `awaited`
        does not depend and on which some live result depends.
        """
        needed = self._needed_by(awaited)
        early = (k for k in before if k < until and k not in needed)
        late = self._late(position, before, [k for k in early if self._is_matmul(self._unit(k))])
        return {value for _, value in itertools.islice(late, 1)}

    def late_gradients(
        self, position: int, before: Sequence[int], until: int, heavy: Set[int], awaited: set[int]
    ) -> set[int]:
        """Returns live results that XLA may compute late: gradients of parameters, and results of
        heavy steps of the forward pass. Their steps are added to `awaited`.

        Each result depends on a matmul or a reduction of the backward pass before position `until`,
        or on a step in `heavy`, on which the step at `position` does not depend.

        - `awaited`: the positions of such steps for which an earlier step waits already.
        """
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
        """Returns the positions of the forward pass's steps that read a heavy value. A value is
        heavy if the backward pass reads it and it holds at least this share of the bytes of all
        values that the forward pass leaves to the backward pass."""
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
        """Returns the values of the forward pass whose last reader is in the backward pass."""
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
        """Yields each of the steps on which a live result depends, with such a result; the latest
        step first."""
        for earlier in reversed(steps):
            results = (self.of_step(k, position) for k in self._waiting_for(earlier, before))
            if alive := next(filter(None, results), None):
                yield earlier, alive[0]

    def _unit(self, position: int) -> Unit:
        return self._graph.units[self._steps[position]]

    def _is_matmul(self, unit: Unit) -> bool:
        return is_of_library(self._graph.graph, unit)

    def _may_be_gradient(self, unit: Unit) -> bool:
        """Whether a unit is a matmul or a reduction of the backward pass with its own kernel."""
        is_kernel = unit.index not in self._shared  # Otherwise fused with its operands' kernel.
        reduces = "reduce" in self._graph.graph.opcodes[unit.root] and is_kernel
        return unit.phase is Phase.BACKWARD and (reduces or self._is_matmul(unit))

    def _needed_by(self, position: int) -> set[int]:
        """Returns the positions of all steps on which the step at `position` depends."""
        needed, left = set[int](), [position]
        while left:
            new = {k for k in self._flow.source[left.pop()].values() if k >= 0} - needed
            needed |= new
            left.extend(new)
        return needed

    def _waiting_for(self, first: int, before: Sequence[int]) -> Iterator[int]:
        """Yields the step at position `first` and the steps of `before` that depend on it."""
        waiting = {first}
        for position in before:
            if position in waiting or not waiting.isdisjoint(self._flow.source[position].values()):
                waiting.add(position)
                yield position

    def trigger(self, group: RecomputedGroup, before: Sequence[int]) -> set[int]:
        """Returns the trigger of a group as a set of at most one value.

        It is the latest other operand of the group's reader that depends on a matmul and is
        computed after the last use of the group's earlier results. If there is no such operand, it
        is the latest live result, if possible one that depends on a matmul: XLA computes others at
        the start of the step.
        """
        first = group.members[0].position
        if group.reader is not None:
            read = self._flow.source[group.reader.position].items()
            last_use, same_body = self._last_read_of_earlier(group), set(before)
            late = [(k, value) for value, k in read if k in same_body and k >= last_use]
            late = [
                (k, value)
                for k, value in late
                if value in self.of_step(k, first) and value not in self._early
            ]
            if late:
                position, value = max(late)
                return self._of_fused_map(position, first, before) or {value}
        return self.latest(first, before, beside=self._early) or self.latest(first, before)

    def _of_fused_map(self, matmul: int, first: int, before: Sequence[int]) -> set[int]:
        """Returns the live result of the first map that reads the result of the step at position
        `matmul`, if XLA fuses both without a barrier between them; otherwise an empty set.

        - `first`: the position of the group's first member.
        """
        if not self._joins_maps or not self._is_matmul(self._unit(matmul)):
            return set()
        maps = (k for k in before if is_map(self._graph.graph, self._unit(k).root))
        readers = (k for k in maps if matmul in self._flow.source[k].values())
        alive = (value for k in readers for value in self.of_step(k, first))
        return set(itertools.islice(alive, 1))

    def _last_read_of_earlier(self, group: RecomputedGroup) -> int:
        """Returns the position of the last step that reads a result of the group's earlier
        computations; -1 if there is none."""
        first = group.members[0].position
        results = {
            output for member in group.members for output in self._graph.units[member.unit].outputs
        }
        reads = (k for k in range(first) if results & self._flow.source[k].keys())
        return max(reads, default=-1)


def copies_made_again(execution: Execution, flow: Dataflow, body: LoopBody) -> dict[int, set[int]]:
    """Returns, by position of a step, the values whose repeated copies may begin at that step.

    A repeated copy begins at its reader. If copies begin ahead of their readers
    (`Execution.copies_ahead`), it begins at the last matmul before the reader, unless a loop or a
    step that reads the value lies between.
    """
    made, values_at = set[_CopyMade](), dict[int, set[int]]()
    behind: list[ScheduledUnit] = []
    for item in body.items:
        if isinstance(item, LoopBody):
            behind = []
            continue
        for value in set() if item.is_again else _read_again(execution, flow, item, made):
            start = _start_of_copy(execution, flow, value, behind)
            position = item.position if start is None else start.position
            values_at.setdefault(position, set()).add(value)
        behind.append(item)
    return values_at


def _start_of_copy(
    execution: Execution, flow: Dataflow, value: int, behind: Sequence[ScheduledUnit]
) -> ScheduledUnit | None:
    """Returns the step, before the reader, at which a copy begins; None if the copy begins at the
    reader itself. `behind`: the steps since the last loop of the body, the reader's being next."""
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
    """Returns the values whose copies a step makes again: an earlier step has read the value in the
    same layout, and its copy was not kept.

    Layouts with more shards than the stored one do not count: XLA slices the value as it reads it.

    - `made`: the copies that first computations of the body have made so far. The step's copies are
      added.
    """
    sources, unit = flow.source[step.position], execution.units.units[step.unit]
    read_again, shape = set(), execution.mesh.shape
    pairs = zip(unit.rule.reads, execution.reads[step.unit], strict=True)
    for read, ((value, _), wanted) in enumerate(pairs):
        stored = execution.layouts[value]
        if wanted == stored or wanted.shard_count(shape) > stored.shard_count(shape):
            continue
        key = (value, sources.get(value, -1), wanted)
        if key in made and OperandRead(step.unit, read) not in execution.kept_copies:
            read_again.add(value)
        made.add(key)
    return read_again


def is_scaled(graph: HloGraph, unit: Unit) -> bool:
    """Whether a unit's result is a product with a scalar constant, perhaps in another layout or
    dtype."""
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
