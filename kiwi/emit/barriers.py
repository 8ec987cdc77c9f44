"""The optimization barriers of a plan: barriers that the plan needs, and barriers that tie steps.

There are as few barriers as the plan's memory allows (docs/how_it_works/memory.md, "Barriers"): the
barriers of `kiwi.emit.needed_barriers`, and one barrier for each of `Execution.tied_steps`. Before
a tied step, the values that the step reads from earlier steps pass one `optimization_barrier`. A
recent result, the *trigger*, passes the same barrier, so that the step cannot start before it. Two
kinds of values pass no barrier:

- The results of the last `SLACK` steps, so that XLA can fuse neighbours. An exception is a value
  that a matmul would read unscaled (`is_scaled`) while later steps read it scaled.
- The result of a library call before its last reader, if that reader may write over it
  (`kiwi.hlo.in_place`). The reader waits for the result anyway.

An earlier step may keep a resharded copy for later steps (`Execution.kept_copies`). The copy then
passes the barriers of these steps, and of recomputed groups, in place of the value.

The trigger is the latest live result that is older than the last `SLACK` steps, so that collectives
of a step overlap with the neighbours. If there is no such result, the trigger is the neighbour's
result. Later steps read the trigger behind the barrier. The trigger must have a later reader: XLA
drops operands of a barrier whose results nothing reads.

An update that overwrites a donated argument is also tied to its neighbours if they read the
argument. Otherwise XLA would copy the argument at the start of the step.

A fetch from the host (`kiwi.emit.context`) waits for the latest result that is older than the last
step. The fetch so has the time of that step for its copy. In the body of a loop, only steps of the
same body are neighbours and triggers, and values from outside count as older. For the body around
it, a loop is one step.
"""

import functools
from dataclasses import dataclass, replace

from kiwi.emit.execution import Copy, Execution
from kiwi.emit.needed_barriers import (
    SLACK,
    LiveResults,
    RecomputedGroup,
    copies_made_again,
    early_summands,
    is_scaled,
    makes_constants_early,
    recomputed_groups,
)
from kiwi.hlo.graph import Phase
from kiwi.hlo.host_memory import FETCH
from kiwi.hlo.in_place import is_of_library, overwritable, overwritable_by_operand
from kiwi.hlo.large_operators import large_units, reduces_late
from kiwi.hlo.loops import ENTRIES, EXITS
from kiwi.hlo.units import Unit
from kiwi.memory.live_ranges import temporaries
from kiwi.memory.loop_bodies import LoopBody, OperandRead, ScheduledUnit, dataflow, loop_bodies

MOST_LATE = 3
"""A matmul of the backward pass waits for gradients that are at least this many matmuls older
(`Execution.gradients_in_time`). The gradients are reduced meanwhile. A larger number costs memory,
a smaller one costs time."""

HEAVY = 0.02
"""Steps of the forward pass are not run late if they read a value with at least this part of the
bytes that the forward pass leaves to the backward pass. Otherwise XLA would hold the logits of a
language model until it picks the labels' logits for the loss that the step reports."""

POINTER_BYTES, ALIGNMENT_BYTES = 8, 64
"""The size of a pointer in the tuple of a barrier's operands, and the alignment of the tuple."""


@dataclass(frozen=True)
class Barrier:
    """The operands of the barrier before one step. Without operands there is no barrier.

    - `values`: the values that the step reads behind the barrier.
    - `triggers`: recent results, which all later steps read behind the barrier. There are none if
      one of `values` ties the step.
    - `copies`: the copies, kept by an earlier step, that the step reads behind the barrier.
    - `is_of_group`: whether the recomputations that follow also read `values` behind the barrier.
    """

    values: tuple[int, ...] = ()
    triggers: tuple[int, ...] = ()
    copies: tuple[Copy, ...] = ()
    is_of_group: bool = False

    def __bool__(self) -> bool:
        return bool(self.values or self.triggers or self.copies)

    @property
    def pointer_bytes(self) -> int:
        """The bytes of the tuple of pointers to the operands; a single operand needs no tuple."""
        count = len((*self.values, *self.triggers, *self.copies))
        return 0 if count < 2 else -(-count * POINTER_BYTES // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@dataclass(frozen=True)
class Barriers:
    """The barriers of a schedule.

    - `steps[k]`: the barrier before the k-th step.
    - `loops[l]`: the triggers for which the buffers of loop l wait.
    """

    steps: tuple[Barrier, ...]
    loops: dict[int, tuple[int, ...]]

    @property
    def pointer_bytes(self) -> int:
        """The bytes of the tuples of pointers of all barriers before steps."""
        return sum(barrier.pointer_bytes for barrier in self.steps)


@functools.lru_cache(maxsize=4)
def barriers(execution: Execution) -> Barriers:
    """Returns the barriers of an execution's schedule.

    The latest results are cached, since forms of one plan are compared before one is emitted.
    """
    return _BarrierBuilder(execution).build()


class _BarrierBuilder:
    """Walks the loop bodies of a schedule and builds the barrier of each step.

    In all methods, `before` has the positions of the earlier steps of the same body, and `position`
    is the position of the step in the schedule.
    """

    def __init__(self, execution: Execution) -> None:
        self._graph = execution.units
        self._units = execution.units.units
        self._steps = execution.schedule.steps
        self._aliased = execution.units.aliased_results
        self._execution = execution
        kept, fetched = execution.kept_copies, execution.fetched
        self._flow = dataflow(execution.units, self._steps, kept, fetched)
        self._live = LiveResults(execution, self._flow)
        self._found = [Barrier() for _ in self._steps]
        self._loops: dict[int, tuple[int, ...]] = {}
        self._heavy = (
            self._live.heavy_readers(HEAVY) if execution.metrics_in_time else frozenset[int]()
        )
        self._backward: list[int] = []
        self._awaited: set[int] = set()
        self._fetches: set[int] = set()

    def build(self) -> Barriers:
        self._walk(loop_bodies(self._graph, self._steps, self._execution.fetched))
        return Barriers(tuple(self._found), self._loops)

    def _walk(self, body: LoopBody) -> None:
        """Builds the barriers of a body and of the loops inside it."""
        before: list[int] = []
        copies = copies_made_again(self._execution, self._flow, body)
        recomputed = recomputed_groups(body)
        merged = (
            candidate
            for candidate in recomputed
            if not candidate.is_apart(self._graph, self._flow, body)
        )
        groups = {group.members[0].position: group for group in merged}
        for item in body.items:
            if isinstance(item, LoopBody):
                first = next(item.steps()).position
                assert item.loop is not None
                if self._execution.facts.makes_constants_early:
                    self._loops[item.loop] = tuple(self._live.latest(first, before, SLACK))
                self._walk(item)
                continue
            again = copies.get(item.position, set())
            group = groups.get(item.position)
            root = self._graph.graph.program.equations[self._units[item.unit].root]
            if root.name == FETCH and root.loop is not None:
                barrier = Barrier()  # XLA can fetch the element when the iteration begins.
            elif item.is_fetched or root.name == FETCH:
                barrier = Barrier(triggers=self._fetch_triggers(item.position, before))
            elif all(map(self._execution.is_tied, group.positions if group else (item.position,))):
                copies_read = tuple(sorted(self._kept_by(item)))
                barrier = replace(self._barrier(item, before), copies=copies_read)
            else:
                barrier = self._needed(item, group, again, before)
                if group is None and (self._heavy or self._execution.gradients_in_time):
                    barrier = self._in_time(item, barrier, before)
            self._found[item.position] = barrier
            before.append(item.position)

    def _fetch_triggers(self, position: int, before: list[int]) -> tuple[int, ...]:
        """Returns the triggers of a fetch: the latest result that is older than `SLACK` steps.

        If the step is not tied, start values of an iteration are no triggers, so that XLA:TPU may
        fetch one iteration ahead. If barriers pace copies, a gradient before the last fetch is a
        trigger as well. Otherwise XLA would compute that gradient at the end.
        """
        units, border = self._units, self._graph.border
        if not self._execution.is_tied(position):
            before = [k for k in before if border(units[self._steps[k]]) not in ENTRIES]
        triggers = self._live.latest(position, before, SLACK) or self._live.latest(position, before)
        fetches = [k for k in before if k in self._fetches]
        if not self._execution.facts.hoists_copies:
            self._fetches.add(position)
        if triggers and fetches:
            (value,) = triggers
            awaited = self._live.computed_at(value, before)
            triggers |= self._live.late_matmul(position, before, fetches[-1], awaited)
        return tuple(sorted(triggers))

    def _needed(
        self, step: ScheduledUnit, group: RecomputedGroup | None, again: set[int], before: list[int]
    ) -> Barrier:
        """Returns the barrier that an untied step needs (`kiwi.emit.needed_barriers`).

        - `group`: the recomputed group that the step begins, if it begins one.
        - `again`: the values whose copies are made again from this step on.
        """
        if self._graph.border(self._units[step.unit]) in ENTRIES | EXITS:
            return Barrier()
        if group is not None:
            values = group.inputs(self._flow)
            triggers = self._live.trigger(group, before) - values
            copies = tuple(sorted(self._kept_from_before(group)))
            return Barrier(tuple(sorted(values)), tuple(sorted(triggers)), copies, is_of_group=True)
        early = early_summands(self._execution, self._flow, step)
        if not again and not makes_constants_early(self._execution, self._units[step.unit]):
            return Barrier(tuple(sorted(early)))
        again |= early
        triggers = self._triggers_of_copies(step, again, before) - again
        return Barrier(tuple(sorted(again)), tuple(sorted(triggers))) if triggers else Barrier()

    def _triggers_of_copies(
        self, step: ScheduledUnit, again: set[int], before: list[int]
    ) -> set[int]:
        """Returns the triggers of a step at which repeated copies begin. If copies begin ahead of
        their readers, the trigger is the latest result that the step reads anyway."""
        if self._execution.copies_ahead:
            read = self._flow.source[step.position].items()
            read_from = {k: value for value, k in read if k in before and value not in again}
            if read_from:
                return {read_from[max(read_from)]}
        early = self._live.latest(step.position, before, SLACK)
        return early or self._live.latest(step.position, before)

    def _in_time(self, step: ScheduledUnit, barrier: Barrier, before: list[int]) -> Barrier:
        """Returns the barrier of a step; if the step is a large unit of the backward pass, with
        late results among its triggers.

        Late results are gradients, and results of forward steps that read heavy values, such as a
        metric of the logits. Otherwise XLA would compute them at the end, and hold their operands.
        """
        unit = self._units[step.unit]
        is_large = large_units(self._graph)[unit.index] and not reduces_late(self._graph, unit)
        if unit.phase != Phase.BACKWARD or not is_large:
            return barrier
        same_body = set(before)
        earlier = [k for k in self._backward if k in same_body]
        self._backward.append(step.position)
        if len(earlier) < MOST_LATE:
            return barrier
        until = earlier[-MOST_LATE] if self._execution.gradients_in_time else 0
        late = self._live.late_gradients(step.position, before, until, self._heavy, self._awaited)
        read = self._flow.source[step.position].items()
        read_from = {k: value for value, k in read if k in same_body and value not in late}
        if not late or not (barrier or read_from):
            return barrier
        values = barrier.values or ((read_from[max(read_from)],) if read_from else ())
        triggers = {*barrier.triggers, *late} - {*values}
        return replace(barrier, values=values, triggers=tuple(sorted(triggers)))

    def _barrier(self, step: ScheduledUnit, before: list[int]) -> Barrier:
        """Returns the barrier of a tied step, without copies."""
        unit, position = self._units[step.unit], step.position
        if self._graph.border(unit) in ENTRIES | EXITS:
            return Barrier()
        recent = set(before[-SLACK:])
        source = self._flow.source[position]
        values = {value for value, k in source.items() if k not in recent or position - k > SLACK}
        rescaled = {value for value in source if self._is_rescaled(position, unit, value)}
        beside = frozenset() if step.is_again else self._written_over(position, unit)
        values = (values | rescaled) - beside
        latest = self._live.latest(position, before, SLACK, beside)
        if values and not latest and len(before) > SLACK:
            latest = self._live.latest(position, before, beside=beside)
        triggers = (self._neighbours(position, unit, before) | latest) - beside
        if not triggers:
            return Barrier(tuple(sorted(rescaled)))
        return Barrier(tuple(sorted(values)), tuple(sorted(triggers - values)))

    def _written_over(self, position: int, unit: Unit) -> frozenset[int]:
        """Returns the results of library calls whose last reader is the step, and over which the
        step may write."""
        graph, source = self._graph.graph, self._flow.source[position]
        values = (*overwritable(graph, unit), *overwritable_by_operand(graph, unit))
        return frozenset(
            value
            for value, producer in temporaries(self._graph, unit, values)
            # A value is missing from `source` if the step reads an earlier step's copy of it.
            if self._flow.last_read.get((value, source.get(value, -1))) == position
            and is_of_library(graph, producer)
        )

    def _is_rescaled(self, position: int, unit: Unit, value: int) -> bool:
        """Whether a matmul would read unscaled a value that later steps read scaled."""
        graph, computed = self._graph.graph, self._flow.source[position][value]
        if computed < 0 or self._flow.last_read[value, computed] <= position:
            return False
        producer = self._units[self._steps[computed]]
        return is_of_library(graph, unit) and is_scaled(graph, producer)

    def _kept_by(self, step: ScheduledUnit) -> set[Copy]:
        """Returns the copies, kept by earlier steps, that a step reads."""
        unit, kept = self._units[step.unit], self._execution.kept_copies
        return {
            self._execution.copy_of(unit, number)
            for number in range(len(unit.rule.reads))
            if OperandRead(step.unit, number, step.is_again) in kept
        }

    def _kept_from_before(self, group: RecomputedGroup) -> set[Copy]:
        """Returns the kept copies that a group reads and that none of its members makes."""
        made, from_before = set[Copy](), set[Copy]()
        for member in group.members:
            kept, unit = self._kept_by(member), self._units[member.unit]
            from_before |= kept - made
            made |= {
                self._execution.copy_of(unit, n) for n in range(len(unit.rule.reads))
            } - from_before
        return from_before

    def _neighbours(self, position: int, unit: Unit, before: list[int]) -> set[int]:
        """Returns the live results of the neighbours, if they read an argument that the unit
        overwrites."""
        overwritten = {self._aliased[output] for output in unit.outputs if output in self._aliased}
        steps = before[-1 - SLACK :]
        if not any(overwritten & set(self._units[self._steps[step]].reads) for step in steps):
            return set()
        return {value for step in steps for value in self._live.of_step(step, position)} - set(
            unit.reads
        )
