"""`Execution`: a schedule of units, with the layouts of all values and operands."""

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
"""A resharded copy: the index of the value, the name of the dtype in which the value is moved, and
the copy's layout."""


@dataclass(frozen=True, eq=False)
class Execution:
    """A schedule of units, with all that the emitted program does beside computing them.

    - `kernels`: the kernels of the step's units, for the target of the plan. They determine the
      chains of resharding.
    - `mesh`: the mesh of the plan.
    - `schedule`: the units in the order in which they run, with recomputations and fetches.
    - `argument_shardings`: the sharding of each flat argument.
    - `result_shardings`: the sharding of each flat result; None for a result that is a literal.
    - `layouts`: the sharding in which each value is stored, by value index.
    - `reads[u]`: for unit u, the expected sharding of each entry of `rule.reads`.
    - `kept_copies`: the reads for which a unit uses the copy of the latest earlier reader of the
      value in the same body.
    - `tied_steps`: the positions of steps that barriers keep in the plan's order, in addition to
      the barriers that every plan needs (`kiwi.emit.barriers`); None for all steps.
    - `fetched`: the units whose second step in the schedule is a fetch. Their results are copied to
      the host after the first run and fetched from there.
    - `is_for_another_compiler`: whether operands are moved in their own dtype, because a compiler
      other than the plan's compiles the program. The plan's compiler rounds narrowed operands
      (`Kernel.moved`) anyway; another compiler may not.
    - `arrangement`: the scheduler and the heap that the compiler is asked to use.
    - `copies_ahead`: whether repeated copies may begin beside the matmul before their readers, to
      overlap with that matmul.
    - `gradients_in_time`: whether a matmul of the backward pass waits for gradients that are a few
      matmuls older. Otherwise XLA computes these gradients at the end, and holds their operands.
    - `metrics_in_time`: whether a matmul of the backward pass waits for operators of the forward
      pass that read large values kept for the backward pass, such as a metric of the logits.
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
        """The facts about the plan's target that hold for any program."""
        return self.kernels.facts

    @property
    def compiler(self) -> Compiler:
        """The compiler that the plan was made for."""
        return TARGETS[self.facts.target].compiler

    def is_tied(self, position: int) -> bool:
        """Whether a barrier keeps the step at a position of the schedule in the plan's order."""
        return self.tied_steps is None or position in self.tied_steps

    @functools.cached_property
    def recomputed(self) -> frozenset[int]:
        """The units that are computed more than once."""
        again = frozenset(unit for unit, count in self.schedule.computations().items() if count > 1)
        return again - self.fetched

    def moved_value(self, unit: Unit, value: int) -> Value:
        """Returns the description of a unit's operand as it is resharded, perhaps in a narrower
        dtype."""
        if self.is_for_another_compiler:
            return self.units.graph.program.values[value]
        return self.kernels.moved_value(unit, value)

    def copy_of(self, unit: Unit, number: int) -> Copy:
        """Returns the copy that a unit reads for entry `number` of its `rule.reads`, whether the
        copy's layout differs from the stored one or not."""
        value = unit.rule.reads[number][0]
        return value, str(self.moved_value(unit, value).dtype), self.reads[unit.index][number]

    def resharding_table(self, moved: Value) -> ReshardingTable:
        """Returns the priced chains of resharding between the layouts of a moved value."""
        return resharding_table(self.mesh, self.facts, moved)


@timed("emit")
def build_execution(solved: Solved) -> Execution:
    """Returns the execution of a solution."""
    planning, units, choices = solved.problem, solved.problem.units, solved.choices
    layouts = solved.layouts
    depths = [len(units.graph.program.loops_around(unit.loop)) for unit in units.units]
    again_at = {
        unit.index: residency.again_at
        for unit, (_, residency) in zip(units.units, choices, strict=True)
        if residency.again_at is not None
    }
    fetched = frozenset(unit for unit in again_at if not choices[unit][1].recomputes)
    return Execution(
        planning.kernels,
        planning.mesh,
        recomputation_schedule(depths, again_at, fetched),
        tuple(layouts[argument] for argument in units.graph.program.arguments),
        _result_shardings(planning, layouts),
        layouts,
        tuple(strategy.reads for strategy, _ in choices),
        solved.kept,
        fetched=fetched,
    )


def recomputation_schedule(
    depths: Sequence[int], again_at: dict[int, int], fetched: frozenset[int] = frozenset()
) -> Schedule:
    """Returns the schedule with all units in order. Before each unit stand the units that are
    fetched for it, then the units that are recomputed for it, each in their original order.

    - `depths[u]`: the number of loops around unit u. Of the units before one unit, units in fewer
      loops come first, so that they run in front of a loop.
    - `again_at`: by unit, the unit before which it is fetched or recomputed.
    - `fetched`: the units of `again_at` that are fetched.
    """
    before_unit: list[list[int]] = [[] for _ in depths]
    for unit in sorted(again_at, key=lambda unit: (depths[unit], unit not in fetched, unit)):
        before_unit[again_at[unit]].append(unit)
    return Schedule(
        tuple(step for unit in range(len(depths)) for step in (*before_unit[unit], unit))
    )


def _result_shardings(
    planning: PlanningProblem, layouts: dict[int, TensorSharding]
) -> tuple[TensorSharding | None, ...]:
    """Returns the sharding of each flat result: the one that the caller gives, the one of the
    argument that the result replaces, or the stored one; None for a literal."""
    shardings: list[TensorSharding | None] = []
    for position, result in enumerate(planning.units.graph.program.results):
        if position in planning.fixed.results:
            shardings.append(planning.fixed.results[position])
        elif position in planning.fixed.carried:
            shardings.append(layouts[planning.fixed.carried[position]])
        else:
            shardings.append(layouts[result] if isinstance(result, int) else None)
    return tuple(shardings)
