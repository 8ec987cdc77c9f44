"""The execution of a plan: a `Schedule` of units, with the layouts of all values and operands."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from kiwi.hlo.program import Value
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.kernels.facts import TargetFacts
from kiwi.kernels.graph import KernelGraph
from kiwi.mesh import DeviceMesh, ReshardingTable, TensorSharding
from kiwi.problem.build import NONE_KEPT, KeptCopies, PlanningProblem
from kiwi.problem.edges import resharding_table
from kiwi.problem.solved import Solved
from kiwi.solver.schedule import Schedule
from kiwi.targets.registry import TARGETS
from kiwi.timings import timed
from kiwi.xla.compiler import Compiler
from kiwi.xla.step import XLAS_OWN, Arrangement

Copy = tuple[int, str, TensorSharding]
"""A value, the dtype in which it is moved, and the layout of a copy of it."""


@dataclass(frozen=True, eq=False)
class Execution:
    """A schedule of units and their layouts.

    - `kernels`: of the step's units, for the target of the plan. They determine the chains of
      resharding.
    - `argument_shardings`: for each flat argument.
    - `result_shardings`: for each flat result; None for a result that is a literal.
    - `layouts`: by value index, the sharding in which it is stored.
    - `reads[u]`: for unit u, the expected sharding of each entry of `rule.reads`.
    - `kept_copies`: the reads for which a unit uses the copy of the latest earlier reader of the
      value in the same body.
    - `tied_steps`: the positions of steps that barriers keep in the plan's order, beside the
      barriers that every plan needs (`kiwi.emit.barriers`); None for all steps.
    - `copies_ahead`: whether copies that are made again may begin beside the matmul before their
      readers, to overlap with it.
    - `gradients_in_time`: whether a matmul of the backward pass waits for the gradients of a few
      matmuls before. XLA otherwise leaves them for the end, and holds their operands.
    - `metrics_in_time`: whether a matmul of the backward pass waits for operators of the forward
      pass that read large values which are kept for the backward pass, as a metric of the logits.
    - `fetched`: the units whose second step in the schedule is a fetch: their results are copied to
      the host after the first run and fetched from there.
    - `arrangement`: how the compiler is told to arrange the program.
    - `is_for_another_compiler`: operands are moved in their own dtype. The plan's compiler rounds
      operands that are narrowed (`Kernel.moved`) anyway; another compiler may not.
    """

    kernels: KernelGraph
    mesh: DeviceMesh
    schedule: Schedule
    argument_shardings: tuple[TensorSharding, ...]
    result_shardings: tuple[TensorSharding | None, ...]
    layouts: dict[int, TensorSharding]
    reads: tuple[tuple[TensorSharding, ...], ...]
    kept_copies: KeptCopies = NONE_KEPT
    tied_steps: frozenset[int] | None = None
    fetched: frozenset[int] = frozenset()
    is_for_another_compiler: bool = False
    arrangement: Arrangement = XLAS_OWN
    copies_ahead: bool = False
    gradients_in_time: bool = False
    metrics_in_time: bool = False

    @property
    def units(self) -> UnitGraph:
        """The units of the step, in order."""
        return self.kernels.units

    @property
    def facts(self) -> TargetFacts:
        """What the target of the plan does with any program."""
        return self.kernels.facts

    @property
    def compiler(self) -> Compiler:
        """The compiler that the plan was made for."""
        return TARGETS[self.facts.target].compiler

    def is_tied(self, position: int) -> bool:
        """Whether barriers keep a step of the schedule in the plan's order."""
        return self.tied_steps is None or position in self.tied_steps

    @functools.cached_property
    def recomputed(self) -> frozenset[int]:
        """The units that run more than once."""
        again = frozenset(u for u, count in self.schedule.computations().items() if count > 1)
        return again - self.fetched

    def moved_value(self, unit: Unit, value: int) -> Value:
        """The value that is moved when a unit's operand is resharded."""
        if self.is_for_another_compiler:
            return self.units.graph.program.values[value]
        return self.kernels.moved_value(unit, value)

    def copy_of(self, unit: Unit, number: int) -> Copy:
        """The copy for entry `number` of a unit's `rule.reads`, in any layout."""
        value = unit.rule.reads[number][0]
        return value, str(self.moved_value(unit, value).dtype), self.reads[unit.index][number]

    def resharding_table(self, moved: Value) -> ReshardingTable:
        """The resharding between the layouts of a moved value, as it was priced."""
        return resharding_table(self.mesh, self.facts, moved)


@timed("emit")
def build_execution(solved: Solved) -> Execution:
    """Turns a solution of a problem into an execution."""
    planning, units, choices = solved.problem, solved.problem.units, solved.choices
    layouts = solved.layouts
    depths = [len(units.graph.program.loops_around(unit.loop)) for unit in units.units]
    again_at = {
        unit.index: residency.again_at
        for unit, (_, residency) in zip(units.units, choices, strict=True)
        if residency.again_at is not None
    }
    fetched = frozenset(u for u in again_at if not choices[u][1].recomputes)
    return Execution(
        planning.kernels,
        planning.mesh,
        recomputation_schedule(depths, again_at, fetched),
        tuple(layouts[a] for a in units.graph.program.arguments),
        _result_shardings(planning, layouts),
        layouts,
        tuple(strategy.reads for strategy, _ in choices),
        solved.kept,
        fetched=fetched,
    )


def recomputation_schedule(
    depths: Sequence[int], again_at: dict[int, int], fetched: frozenset[int] = frozenset()
) -> Schedule:
    """Units in order; before unit t, those fetched at t, then those recomputed, in their original
    order.

    `depths[u]` counts the loops around unit u: in front of a loop, units outside of it come first.
    """
    again: list[list[int]] = [[] for _ in depths]
    for unit in sorted(again_at, key=lambda u: (depths[u], u not in fetched, u)):
        again[again_at[unit]].append(unit)
    return Schedule(tuple(u for t in range(len(depths)) for u in (*again[t], t)))


def _result_shardings(
    planning: PlanningProblem, layouts: dict[int, TensorSharding]
) -> tuple[TensorSharding | None, ...]:
    found: list[TensorSharding | None] = []
    for position, result in enumerate(planning.units.graph.program.results):
        if position in planning.fixed.results:
            found.append(planning.fixed.results[position])
        elif position in planning.fixed.carried:
            found.append(layouts[planning.fixed.carried[position]])
        else:
            found.append(layouts[result] if isinstance(result, int) else None)
    return tuple(found)
