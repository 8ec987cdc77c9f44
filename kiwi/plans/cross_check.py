"""The check by a compiler that the plan was not made for, such as XLA:CPU for a plan for GPUs.

A plan belongs to its target. Another compiler shows that the planned step compiles, and which
collectives it has. The memory of its program says nothing about the budget. The rules of that
compiler predict the memory and the collectives of the same decisions (`expected`). Its program is
compared with this prediction.
"""

from dataclasses import dataclass

from kiwi.emit.execution import Execution
from kiwi.errors import CompileCheckError
from kiwi.hlo.units import Unit
from kiwi.memory.residency import residencies
from kiwi.messages import topics
from kiwi.plans.estimate import Estimate, estimate_schedule
from kiwi.problem.build import Fixed, SourceNode, UnitNode, chosen_problem
from kiwi.problem.predicted_collectives import unforeseen
from kiwi.problem.solved import Solved
from kiwi.problem.strategies import ShardingStrategy
from kiwi.problem.strategy_table import StrategyTable
from kiwi.targets.registry import target_named
from kiwi.targets.target import Target
from kiwi.timings import timed
from kiwi.xla.compilers import compile_for
from kiwi.xla.read.collectives import AxisUse
from kiwi.xla.read.compiled_program import CompiledProgram
from kiwi.xla.step import Step


@dataclass(frozen=True)
class CrossCheck:
    """The check by a compiler that the plan was not made for.

    - `program`: the figures of that compiler's program.
    - `expected_peak_bytes`: the peak that the rules of that compiler predict.
    - `unforeseen_collectives`: the collectives of the program that the rules do not predict, by
      kind and mesh axes.
    """

    program: CompiledProgram
    expected_peak_bytes: int
    unforeseen_collectives: tuple[AxisUse, ...]


def cross_checked(execution: Execution, step: Step, verify: str, budget_bytes: int) -> CrossCheck:
    """Compiles an execution's step with the compiler that `verify` names, and returns the check.
    `budget_bytes`: the plan's memory budget. Raises as `compile_for` does."""
    program = compile_for(verify, step)
    estimate = expected(execution, target_named(verify), budget_bytes)
    beyond = unforeseen(estimate.collective_uses, program.collective_uses)
    return CrossCheck(program, estimate.peak_bytes, beyond)


@timed("estimate")
def expected(execution: Execution, target: Target, budget_bytes: int) -> Estimate:
    """Returns the estimate of an execution by the rules of another target, with nothing in host
    memory. Copies that are negligible compared with the budget are left out."""
    units, mesh, kept_reads = execution.units, execution.mesh, execution.kept_copies
    program = units.graph.program
    kernels = target.kernels(units, mesh.hardware)
    table = StrategyTable(kernels, mesh)
    sources = tuple(
        SourceNode(value, (execution.layouts[value],))
        for value in (*program.arguments, *program.constants)
    )
    nodes = tuple(
        UnitNode(unit.index, (_strategy(table, unit, execution),), kept_until)
        for unit, kept_until in zip(units.units, residencies(units, recompute=False), strict=True)
    )
    results = {
        k: sharding for k, sharding in enumerate(execution.result_shardings) if sharding is not None
    }
    fixed = Fixed(
        dict(zip(program.arguments, execution.argument_shardings, strict=True)), results, {}
    )
    planning = chosen_problem(kernels, mesh, fixed, sources, nodes, budget_bytes)
    solution = [0] * len(planning.problem.nodes)
    return estimate_schedule(Solved(planning, solution, kept_reads), execution.schedule)


def _strategy(table: StrategyTable, unit: Unit, execution: Execution) -> ShardingStrategy:
    """Returns the strategy of a unit with the layouts of the execution.

    **Raises:** `CompileCheckError` if the other target's rules have no such strategy.
    """
    reads = execution.reads[unit.index]
    results = tuple(execution.layouts[output] for output in unit.outputs)
    between = (
        candidate
        for candidate in table.all_of(unit)
        if (candidate.reads, candidate.results) == (reads, results)
    )
    strategy = next(between, None)
    if strategy is None:
        opcode, describe = execution.units.graph.opcode_of(unit.root), execution.mesh.describe
        raise CompileCheckError(
            f"By the rules of the other compiler operator {unit.index} ({opcode}) cannot read "
            f"{' '.join(map(describe, reads)) or 'nothing'} and yield "
            f"{' '.join(map(describe, results))}.",
            topic=topics.NO_EXPECTATION,
        )
    return strategy
