"""Plans by the paper's own models: "kiwi-full" and "kiwi-reduced".

1. The step's strategies and reshardings become a `ShardedGraph`.
2. The model is solved for the budget. Its schedule and strategies are simulated, emitted and
   compiled as any plan.
3. While the compiled peak is over the budget, the limit is lowered by the excess, and the model is
   solved again (`kiwi.campaign.limit_search`).

**The `ShardedGraph`** is the graph for which the paper's formulations choose strategies. Arguments
and constants become parameters, resident throughout. Units become operators, in order. Sizes come
from `kiwi.problem.unit_memory`. Buffers that the compiler holds from the start of the step on count
only while their unit runs. The models do not know copies of resharded operands, results that
overwrite an operand, or results that take over a donated argument's buffer. Their plans are
estimated and compiled as any other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kiwi.campaign import shares
from kiwi.campaign.closed_loop import ClosedLoop
from kiwi.campaign.limit_search import LimitSearch
from kiwi.campaign.tools import Tools
from kiwi.errors import InfeasibleBudgetError, NoPlanFoundError
from kiwi.hlo.graph import Phase
from kiwi.literature.formulations import (
    Answer,
    Operator,
    Read,
    ShardedGraph,
    Tie,
    solve_formulation,
)
from kiwi.literature.formulations.solve import DEFAULT_SOLVER
from kiwi.planners.planner import Planner, with_schedule
from kiwi.plans.plan import Plan
from kiwi.problem.build import PlanningProblem
from kiwi.problem.solved import Solved, Start
from kiwi.problem.step import StepToPlan
from kiwi.problem.translation import copies_that_follow
from kiwi.problem.unit_memory import unit_memory
from kiwi.sizes import format_bytes
from kiwi.solver import SolveResult, SolveStatus
from kiwi.solver.mathopt_run import MODEL_SOLVERS
from kiwi.solver.schedule import Schedule


@dataclass(frozen=True)
class PaperModel(Planner):
    """A model of the paper; `model` is its name in `kiwi.literature.formulations`."""

    model: str

    heeds_hints: ClassVar[bool] = True

    def plan(
        self, step: StepToPlan, budget_bytes: int, tools: Tools, start: Start | None = None
    ) -> Plan:
        """Returns the plan of the fastest schedule and strategies that fit the budget as compiled.

        Raises `InfeasibleBudgetError`, `NoPlanFoundError`, and `BudgetNotMetError` if no plan fits
        as compiled.
        """
        origin = start or Start(self.formulate(step, budget_bytes, tools.settings))
        problem, graph = origin.problem, sharded_graph(origin.problem)

        def plan_within(limit_bytes: int) -> Plan:
            answer = self._answer(graph, limit_bytes, tools)
            return self._plan(step, problem, answer, budget_bytes)

        search = LimitSearch(
            plan_within,
            budget_bytes,
            cause="XLA holds more than the model knows of, such as operands in another layout.",
            instead=', or planner="joint"',
        )
        return ClosedLoop(self, search, budget_bytes, tools).run()

    def _answer(self, graph: ShardedGraph, limit_bytes: int, tools: Tools) -> Answer:
        settings = tools.settings
        answer = solve_formulation(
            graph,
            limit_bytes,
            self.model,
            solver=settings.solver if settings.solver in MODEL_SOLVERS else DEFAULT_SOLVER,
            # The clock ends integer programs: no count of their work is in proportion to time.
            time_limit_seconds=tools.allowance.part(1 / shares.SCHEDULE_ROUNDS).planned_seconds,
            seed=settings.seed,
            gap=settings.gap,
        )
        if answer.status is SolveStatus.INFEASIBLE:
            raise InfeasibleBudgetError(
                f"The model of {self.name!r} has no solution in {format_bytes(limit_bytes)}.",
                cause=answer.message,
                suggestion='A larger memory_budget, or planner="joint", which knows more.',
            )
        if answer.priced is None:
            raise NoPlanFoundError(
                f"{self.name!r} found no plan in {answer.solve_seconds:.3g} s.",
                cause=f"The model of {len(graph.computing)} operators is large for "
                f"{answer.solver}.",
                suggestion='effort="thorough", or planner="joint".',
            )
        return answer

    def _plan(
        self, step: StepToPlan, problem: PlanningProblem, answer: Answer, budget_bytes: int
    ) -> Plan:
        assert answer.solution is not None and answer.priced is not None
        schedule, strategies = answer.solution
        # Without recomputation each unit has one residency: options are strategies.
        solved = Solved(problem, copies_that_follow(problem, strategies))
        result = SolveResult(
            status=answer.status,
            solution=tuple(solved.solution),
            objective=answer.seconds,
            bound=answer.bound_seconds,
            seconds=answer.solve_seconds,
            solver=answer.solver,
            peak_bytes=answer.priced.peak_bytes,
            message=answer.message,
            deterministic=answer.status is SolveStatus.OPTIMAL,
        )
        plan = self.plan_of(step, solved, result, budget_bytes)
        first = len(problem.sources)
        return with_schedule(plan, solved, Schedule(tuple(i - first for i in schedule.steps)))


PAPER_MODELS = (
    PaperModel("kiwi-full", "the paper's full model, for small steps", "full"),
    PaperModel("kiwi-reduced", "the paper's reduced model", "reduced"),
)


def sharded_graph(planning: PlanningProblem) -> ShardedGraph:
    """Returns the `ShardedGraph` of a step.

    Operator `len(planning.sources) + u` is unit u. The strategies of an operator are those of its
    node.
    """
    results = frozenset(
        result for result in planning.units.graph.program.results if isinstance(result, int)
    )
    returned = frozenset(
        planning.stored[result][0] for result in results if result in planning.units.producer
    )
    operators = (*_parameters(planning), *_operators(planning))
    return ShardedGraph(operators, tuple(_reads(planning)), tuple(_ties(planning)), returned)


def _parameters(planning: PlanningProblem) -> Iterator[Operator]:
    for source in planning.sources:
        local_bytes = tuple(
            planning.local_bytes(source.value, sharding) for sharding in source.shardings
        )
        no_workspace = (0,) * len(local_bytes)
        name = f"argument {source.value}"
        yield Operator(
            name, (0.0,) * len(local_bytes), local_bytes, no_workspace, is_parameter=True
        )


def _operators(planning: PlanningProblem) -> Iterator[Operator]:
    for node in planning.unit_nodes:
        unit = planning.units.units[node.unit]
        sizes = [unit_memory(planning.kernels, unit, strategy) for strategy in node.strategies]
        yield Operator(
            f"unit {node.unit} ({planning.units.graph.opcode_of(unit.root)})",
            tuple(strategy.seconds for strategy in node.strategies),
            tuple(size.result_bytes for size in sizes),
            tuple(size.workspace_bytes + size.beside_bytes for size in sizes),
            tuple(map(float, planning.result_seconds(node))),
            is_forward=unit.phase is Phase.FORWARD,
            may_recompute=unit.may_recompute,
        )


def _reads(planning: PlanningProblem) -> Iterator[Read]:
    """Returns one read for each pair of nodes. The matrices of several values add up."""
    costs_of: dict[tuple[int, int], np.ndarray] = {}
    for head, node in enumerate(planning.unit_nodes, start=len(planning.sources)):
        for read, (value, _) in enumerate(planning.units.units[node.unit].rule.reads):
            (tail, stored), wanted = (
                planning.stored[value],
                [strategy.reads[read] for strategy in node.strategies],
            )
            seconds = planning.operand(planning.units.units[node.unit], value).table.seconds_matrix(
                stored, wanted
            )
            costs_of[tail, head] = costs_of.get((tail, head), 0.0) + seconds
    return (Read(*pair, seconds) for pair, seconds in costs_of.items())


def _ties(planning: PlanningProblem) -> Iterator[Tie]:
    """Returns the ties from an argument to the value that replaces it in the next step.

    The models do not know loops.
    """
    for argument, value, _ in planning.carried():
        (first, kept), (second, yielded) = planning.stored[argument], planning.stored[value]
        if first < len(planning.sources) <= second:
            seconds = planning.resharding_table(value).seconds_matrix(yielded, kept)
            yield Tie(first, second, seconds.T)
