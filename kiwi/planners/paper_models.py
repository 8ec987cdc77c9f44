"""Plans by the paper's own models: "kiwi-full" and "kiwi-reduced".

1. The step's strategies and reshardings become a `ShardedGraph` (`kiwi.problem.sharded_graph`).
2. The model is solved for the budget; its schedule and strategies are simulated, emitted and
   compiled as any plan.
3. While the compiled peak is over the budget, the limit is lowered by the excess, and the model
   solved again (`kiwi.planners.limit_search`).
"""

from dataclasses import dataclass
from typing import ClassVar

from kiwi.errors import InfeasibleBudgetError, NoPlanFoundError
from kiwi.planners.closed_loop import ClosedLoop
from kiwi.planners.limit_search import MOST_ROUNDS, LimitSearch
from kiwi.planners.planner import Planner, with_schedule
from kiwi.planners.tools import Tools
from kiwi.plans.plan import Plan
from kiwi.problem.build import PlanningProblem
from kiwi.problem.sharded_graph import sharded_graph
from kiwi.problem.solved import Solved, Start
from kiwi.problem.step import StepToPlan
from kiwi.problem.translation import copies_that_follow
from kiwi.sizes import format_bytes
from kiwi.solver import SolveResult, SolveStatus
from kiwi.solver.formulations import Answer, ShardedGraph, solve_formulation
from kiwi.solver.formulations.solve import DEFAULT_SOLVER
from kiwi.solver.mathopt_run import MODEL_SOLVERS
from kiwi.solver.schedule import Schedule


@dataclass(frozen=True)
class PaperModel(Planner):
    """A model of the paper; `model` is its name in `kiwi.solver.formulations`."""

    model: str

    heeds_hints: ClassVar[bool] = True

    def plan(
        self, step: StepToPlan, budget_bytes: int, tools: Tools, start: Start | None = None
    ) -> Plan:
        """The fastest schedule and strategies whose program is within the budget; raises
        `InfeasibleBudgetError`, `NoPlanFoundError`; `BudgetNotMetError` if none fits as
        compiled."""
        own = start or Start(self.formulate(step, budget_bytes, tools.settings))
        problem, graph = own.problem, sharded_graph(own.problem)

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
            # The clock ends integer programs: nothing that they count is in proportion to it.
            time_limit_seconds=tools.allowance.part(1 / MOST_ROUNDS).planned_seconds,
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
