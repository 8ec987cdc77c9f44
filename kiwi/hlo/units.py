"""Units of planning: a materialised equation together with the equations fused in front of it.

A unit reads materialised values, arguments and constants, and yields the results of its
materialised equation. A plan shards a unit as a whole, and keeps or recomputes it as a whole. Its
`index` is its place in the initial schedule. An absorbed equation belongs to every unit that reads
its result.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kiwi.hlo.equation_kinds import BARRIER, is_map
from kiwi.hlo.graph import HloGraph, Phase
from kiwi.hlo.loops import CARRY, EXITS, JOIN, SLICE, LoopKind
from kiwi.hlo.program import Value
from kiwi.hlo.rule import ComposedRule


@dataclass(frozen=True, eq=False)
class Unit:
    """A materialised equation with the chain of equations that it absorbs.

    - `equations`: the indices of the chain's equations and, last, of the materialised equation.
    - `reads`: the indices of the values that the unit reads, each once.
    - `outputs`: the indices of the values that the unit computes.
    - `rule`: the joint sharding rule. The keys of `rule.reads` are value indices, `rule.results`
      are in the order of `outputs`, and `rule.operator_factors` in the order of `equations`.
    - `may_recompute`: whether a plan may drop the results and compute them again.
    - `loop`: the innermost opened loop whose body contains the unit; None outside of loops.
    """

    index: int
    equations: tuple[int, ...]
    reads: tuple[int, ...]
    outputs: tuple[int, ...]
    rule: ComposedRule
    phase: Phase
    may_recompute: bool
    loop: int | None = None

    @property
    def root(self) -> int:
        """The index of the materialised equation."""
        return self.equations[-1]


@dataclass(frozen=True)
class Use:
    """One reader of a unit's results.

    - `time`: the index of the unit at which the result is read. The next iteration reads at the
      last unit of an iteration; a `while` reads initial carries before its first unit.
    - `is_late`: whether the reader runs after the forward pass.
    - `reader`: the index of the unit that reads; None if the next iteration reads.
    """

    time: int
    is_late: bool
    reader: int | None = None


def loop_spans(loops: Iterable[Sequence[int]]) -> dict[int, tuple[int, int]]:
    """Returns, for each loop, the half-open range of the places that it spans.

    `loops`: for each place, the loops around it.
    """
    spans: dict[int, tuple[int, int]] = {}
    for place, around in enumerate(loops):
        spans.update((loop, (spans.get(loop, (place, 0))[0], place + 1)) for loop in around)
    return spans


@dataclass(frozen=True, eq=False)
class UnitGraph:
    """The units of a graph in execution order.

    `donated_arguments`: value indices of arguments whose buffers results may take over.
    """

    graph: HloGraph
    units: tuple[Unit, ...]
    donated_arguments: frozenset[int] = frozenset()

    @functools.cached_property
    def aliased_results(self) -> dict[int, int]:
        """Result → the donated argument whose buffer the result takes over.

        Both have the same shape, dtype and memory space. They are paired in order, as jax does.
        """
        program = self.graph.program
        free = [argument for argument in program.arguments if argument in self.donated_arguments]
        pairs: dict[int, int] = {}
        for result in dict.fromkeys(r for r in program.results if isinstance(r, int)):
            for argument in free if program.values[result].producer is not None else ():
                old, new = program.values[argument], program.values[result]
                on_host = {value in program.host_values for value in (argument, result)}
                if (old.shape, old.dtype) == (new.shape, new.dtype) and len(on_host) == 1:
                    pairs[result] = argument
                    free.remove(argument)
                    break
        return pairs

    @functools.cached_property
    def readers(self) -> dict[int, tuple[int, ...]]:
        """By value, the indices of the units that read it, in order."""
        readers: dict[int, list[int]] = {}
        for unit in self.units:
            for value in unit.reads:
                readers.setdefault(value, []).append(unit.index)
        return {value: tuple(units) for value, units in readers.items()}

    @functools.cached_property
    def producer(self) -> dict[int, int]:
        """By materialised value, the index of the unit that computes it."""
        return {output: unit.index for unit in self.units for output in unit.outputs}

    @functools.cached_property
    def uses(self) -> tuple[tuple["Use", ...], ...]:
        """For each unit, the readers of its results, by time.

        The next iteration reads a carry at the end of the iteration. After the last iteration the
        carry stays in the loop's buffer. A reader of a slice also reads the stacked value.
        """
        return tuple(
            tuple(sorted(set(self._uses_of(unit)), key=lambda use: use.time)) for unit in self.units
        )

    def _uses_of(self, unit: Unit) -> Iterator["Use"]:
        for output in unit.outputs:
            for reader in self.readers.get(output, ()):
                border = self.border(self.units[reader])
                if border == SLICE:
                    yield from self._uses_of(self.units[reader])
                if border not in EXITS:
                    is_late = self.units[reader].phase is not Phase.FORWARD
                    entered = self.entered_while(self.units[reader])
                    time = reader if entered is None else self.spans[entered][0] - 1
                    yield Use(time, is_late, reader)
            for loop in self.graph.program.next_values.get(output, ()):
                if loop in self.spans:
                    end = self.spans[loop][1] - 1
                    yield Use(end, loop != unit.loop and self._is_late(loop, end))

    def _is_late(self, loop: int, end: int) -> bool:
        """Whether the value at the end of an iteration, or the result of a branch, is read after
        the forward pass. `end`: the loop's last unit."""
        is_branch = self.graph.program.loops[loop].kind is LoopKind.BRANCH
        return not is_branch or self.units[end].phase is not Phase.FORWARD

    def entry(self, loop: int | None, time: int) -> int:
        """Returns the latest time, at most `time`, at which a unit of `loop` can run.

        That is `time`, or the start of the inner loop if the unit at `time` is in an inner loop.
        """
        around = self.graph.program.loops_around
        chain, depth = around(self.units[time].loop), len(around(loop))
        return time if len(chain) <= depth else self.spans[chain[depth]][0]

    def entered_while(self, reader: Unit) -> int | None:
        """The `while` for which a unit computes an initial carry; None for other units.

        The loop takes over the buffer of the initial value. So the value is read before the loop.
        """
        loop = reader.loop if self.border(reader) == CARRY else None
        is_while = loop is not None and self.graph.program.loops[loop].kind is LoopKind.WHILE
        return loop if is_while else None

    def is_sliced(self, unit: Unit) -> bool:
        """Whether a loop reads slices of a unit's results."""
        readers = (reader for output in unit.outputs for reader in self.readers.get(output, ()))
        return any(self.border(self.units[reader]) == SLICE for reader in readers)

    @functools.cached_property
    def spans(self) -> dict[int, tuple[int, int]]:
        """By opened loop, the half-open range of its units, inner loops included."""
        return loop_spans(self.graph.program.loops_around(unit.loop) for unit in self.units)

    def border(self, unit: Unit) -> str | None:
        """The loop primitive (`kiwi.hlo.loops`) that a unit computes; None for other units."""
        equation = self.graph.program.equations[unit.root]
        return equation.name if equation.is_border else None

    def only_maps(self, unit: Unit, value: int) -> bool:
        """Whether all equations between an operand and the unit's result are elementwise."""
        dependents = {value}
        for index in unit.equations:
            equation = self.graph.program.equations[index]
            if dependents.isdisjoint(equation.reads):
                continue
            if not is_map(self.graph, index):
                return False
            dependents.update(equation.outputs)
        return True

    def narrowed(self, unit: Unit, value: int) -> Value:
        """Returns an operand in the dtype in which a unit needs it.

        That is a narrower dtype if the unit converts the operand to this dtype before anything
        else; otherwise it is the operand's own.
        """
        program, wide, narrow = self.graph.program, {value}, []
        for index in unit.equations:
            equation = program.equations[index]
            if wide.isdisjoint(equation.reads):
                continue
            if equation.name == BARRIER:
                wide.update(equation.outputs)
            elif equation.name == "convert_element_type":
                narrow += equation.outputs
            else:
                return program.values[value]
        operand_value, converted = (
            program.values[value],
            [program.values[result] for result in narrow],
        )
        is_one = len({result.dtype for result in converted}) == 1
        return (
            operand_value.of_dtype(converted[0].dtype)
            if is_one and converted[0].itemsize < operand_value.itemsize
            else operand_value
        )

    def trips(self, unit: Unit) -> float:
        """The number of times that a unit runs in a step, without recomputation.

        The unit of an initial carry runs once for all iterations of its loop.
        """
        is_carry = self.border(unit) == CARRY
        return self.operand_trips(unit) if is_carry else self.graph.program.trips(unit.loop)

    def operand_trips(self, unit: Unit, *, known: bool = False) -> float:
        """The number of times that a unit's operands are resharded in a step, without
        recomputation.

        A loop's initial carries and stacked operands are resharded before the loop. The result of a
        branch is resharded where the branch hands it on, so that the join reshards nothing.

        - `known`: whether to count as `Program.known_trips` does, not as `Program.trips`.
        """
        program, loop = self.graph.program, unit.loop
        if self.border(unit) == JOIN:
            return 0
        if loop is not None and self.border(unit) in (CARRY, SLICE):
            loop = program.loops[loop].parent
        return program.known_trips(loop) if known else program.trips(loop)

    def result_trips(self, value: int) -> float:
        """The number of times that a value may be resharded in a step for its readers, without
        recomputation. Readers are units, the next iteration, and the caller of the step."""
        program = self.graph.program
        trips = sum(
            self.operand_trips(self.units[reader]) for reader in self.readers.get(value, ())
        )
        trips += sum(program.trips(loop) for loop in program.next_values.get(value, ()))
        producer = self.units[self.producer[value]]
        if self.border(producer) in (CARRY, JOIN):
            trips += program.trips(producer.loop)
        return trips + (value in program.result_values)
