"""Fences: how a compiled program is kept to the order, and the second computations, of a plan.

XLA chooses its own order, and merges what is computed twice. Memory then is what XLA makes it,
not what was planned. A fence in front of a step passes all that the step reads of earlier steps
through one `optimization_barrier`, together with the result of a recent step, the trigger: the
step cannot start before the trigger is there. Fences have `SLACK` steps of play:

- a value that one of the last `SLACK` steps computed is read as it is, so that neighbours may
  be fused; not by a matmul that would take it unscaled (`kiwi.xla.rules.scaled_operands`) while
  later steps read it scaled;
- the trigger is the latest result that is older than that, so that collectives of a step
  overlap with the steps next to it.

An update that overwrites a donated argument is tied to the steps next to it as well if these read
the argument: XLA knows only the order that data dependencies imply, and would copy the argument
at the start of the step.

What a library call yielded passes beside the barrier of the step that reads it last and may write
over it (`kiwi.hlo.in_place`): that step waits for it all the same.

A copy that an earlier step left for later ones (`Execution.kept_copies`) always passes the barrier
of those, in place of the value.

A trigger has to be read behind the barrier from then on: XLA drops the elements of a barrier that
nothing reads, and the tie with them. So only what is still to be read can be one.

`SLACK` was found by compiling ten models of `benchmarks/fidelity` for CPU and GPU: predicted over
compiled peak at 60 % of the free peak, for values 0, 1, 3 and for barriers at second computations
only, was 0.96, 0.94, 0.75 and 0.80 for a state-space model on one CPU, and 0.93, 0.92, 0.97 and
0.69 for a GPT on a (2, 4) mesh of GPUs. Without slack collectives could not overlap at all.

What passes a barrier together is a tuple, for whose pointers XLA reserves a place of their own for
the whole step: 78, 223 and 237 of them in a U-Net, a ViT and an encoder of 100 to 275 steps, 64
bytes from each other, for CPU and GPU alike (jax 0.10.2).

In the body of a loop only steps of the same body are neighbours and triggers; what comes from
outside is older than any of them. The loop itself is one step of what runs it.
"""

from collections.abc import Set
from dataclasses import dataclass, replace

from kiwi.emit.blocks import Block, Step, blocks, flow
from kiwi.emit.execution import Execution
from kiwi.hlo.in_place import is_of_library, overwritable, overwritable_by_operand
from kiwi.hlo.loops import CARRY, RESULT, SLICE, STACK
from kiwi.hlo.unit import Unit
from kiwi.memory.live_ranges import temporaries
from kiwi.mesh import TensorSharding
from kiwi.xla.rules.scaled_operands import is_scaled

SLACK = 1
"""How many of the latest steps a step is not tied to."""

POINTER_BYTES, ALIGNMENT_BYTES = 8, 64


@dataclass(frozen=True)
class Fence:
    """What passes the barrier in front of one step; no barrier without values or copies.

    `triggers` are read behind the barrier from then on; none if one of `values` ties the step.
    `copies`: values with the layouts in which an earlier step left a copy.
    """

    values: tuple[int, ...] = ()
    triggers: tuple[int, ...] = ()
    copies: tuple[tuple[int, TensorSharding], ...] = ()

    @property
    def pointer_bytes(self) -> int:
        """What XLA holds for the tuple that passes the barrier; a single value is none."""
        count = len(self.values) + len(self.triggers) + len(self.copies)
        return 0 if count < 2 else -(-count * POINTER_BYTES // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@dataclass(frozen=True)
class Fences:
    """`steps[k]`: of the k-th step of the schedule. `loops[l]`: what loop l is tied to."""

    steps: tuple[Fence, ...]
    loops: dict[int, tuple[int, ...]]

    @property
    def pointer_bytes(self) -> int:
        """Of all steps together."""
        return sum(fence.pointer_bytes for fence in self.steps)


def fences(execution: Execution) -> Fences:
    """The fences of an execution's schedule."""
    return _Fences(execution).build()


class _Fences:
    """Walks the blocks of a schedule.

    `self._before` are the steps of the block at hand that come before, in order.
    """

    def __init__(self, execution: Execution) -> None:
        self._graph = execution.units
        self._units = execution.units.units
        self._steps = execution.schedule.steps
        self._aliased = execution.units.aliased_results
        self._execution = execution
        self._flow = flow(execution.units, self._steps, execution.kept_copies)
        self._found = [Fence() for _ in self._steps]
        self._loops: dict[int, tuple[int, ...]] = {}

    def build(self) -> Fences:
        self._walk(blocks(self._graph, self._steps))
        return Fences(tuple(self._found), self._loops)

    def _walk(self, block: Block) -> None:
        before: list[int] = []
        for item in block.items:
            if isinstance(item, Block):
                first = next(item.steps()).position
                assert item.loop is not None
                self._loops[item.loop] = tuple(self._latest(first, before))
                self._walk(item)
            else:
                self._found[item.position] = self._with_copies(item, self._fence(item, before))
                before.append(item.position)

    def _fence(self, step: Step, before: list[int]) -> Fence:
        unit, position = self._units[step.unit], step.position
        if self._graph.border(unit) in (CARRY, SLICE, RESULT):
            return Fence()
        recent = set(before[-SLACK:]) if SLACK else set()
        source = self._flow.source[position]
        values = {v for v, k in source.items() if k not in recent or position - k > SLACK}
        rescaled = {v for v in source if self._is_rescaled(position, unit, v)}
        beside = set() if step.is_again else self._written_over(position, unit)
        triggers = self._neighbours(position, unit, before) | self._latest(position, before, beside)
        values, triggers = (values | rescaled) - beside, triggers - beside
        if not triggers:
            return Fence(tuple(sorted(rescaled)))
        return Fence(tuple(sorted(values)), tuple(sorted(triggers - values)))

    def _written_over(self, position: int, unit: Unit) -> set[int]:
        """What library calls yielded, is read here last, and may be written over."""
        graph, source = self._graph.graph, self._flow.source[position]
        values = (*overwritable(graph, unit), *overwritable_by_operand(graph, unit))
        return {
            value
            for value, producer in temporaries(self._graph, unit, values)
            # Not in `source`: an earlier step's copy is read.
            if self._flow.last_read.get((value, source.get(value, -1))) == position
            and is_of_library(graph, producer)
        }

    def _is_rescaled(self, position: int, unit: Unit, value: int) -> bool:
        """Whether a matmul would read unscaled what an earlier step scaled and later ones read."""
        graph, computed = self._graph.graph, self._flow.source[position][value]
        if computed < 0 or self._flow.last_read[value, computed] <= position:
            return False
        producer = self._units[self._steps[computed]]
        return is_of_library(graph, unit) and is_scaled(graph, producer)

    def _with_copies(self, step: Step, fence: Fence) -> Fence:
        kept, reads = self._execution.kept_copies, self._execution.reads[step.unit]
        if step.is_again or not kept:
            return fence
        pairs = zip(self._units[step.unit].rule.reads, reads, strict=True)
        copies = {
            (value, layout)
            for read, ((value, _), layout) in enumerate(pairs)
            if (step.unit, read) in kept
        }
        return replace(fence, copies=tuple(sorted(copies)))

    def _latest(self, position: int, before: list[int], beside: Set[int] = frozenset()) -> set[int]:
        """The latest result older than the slack that is still to be read, `beside` left out."""
        for earlier in reversed(before):
            if position - earlier > SLACK:
                alive = [v for v in self._alive_results(earlier, position) if v not in beside]
                if alive:
                    return {alive[0]}
        return set()

    def _neighbours(self, position: int, unit: Unit, before: list[int]) -> set[int]:
        """Results of the neighbours, if they read an argument that the unit overwrites."""
        overwritten = {self._aliased[o] for o in unit.outputs if o in self._aliased}
        steps = before[-1 - SLACK :]
        if not any(overwritten & set(self._units[self._steps[s]].reads) for s in steps):
            return set()
        return {v for s in steps for v in self._alive_results(s, position)} - set(unit.reads)

    def _alive_results(self, computed: int, position: int) -> list[int]:
        """What an earlier step yielded, lies in the block, and is still to be read."""
        unit = self._units[self._steps[computed]]
        if self._graph.border(unit) in (SLICE, STACK):
            return []
        return [v for v in unit.outputs if self._is_alive(v, computed, position)]

    def _is_alive(self, value: int, computed: int, position: int) -> bool:
        return self._flow.last_read.get((value, computed), -1) >= position
