"""Explains the choice for one operator, and the cost of other choices.

An alternative has two prices. *Alone* is the change of the step time if every other choice stayed;
it comes from the breakdown. *Forced* is the step time after the problem is solved again with the
operator pinned to the alternative. That search starts from the plan, and all other choices may
change.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, overload

import jax
import numpy as np

from kiwi.errors import InfeasibleBudgetError, InvalidArgumentError, check_known
from kiwi.memory.residency import RESIDENCIES
from kiwi.mesh import TensorSharding
from kiwi.messages import topics
from kiwi.plans.breakdown import Decision
from kiwi.plans.document import document
from kiwi.plans.explain_search import SearchExplanation
from kiwi.plans.explain_text import ForcedAlternative, explanation_text
from kiwi.plans.record import Origin, PlanRecord
from kiwi.problem.alternatives import Alternative
from kiwi.problem.build import PlanningProblem
from kiwi.problem.kept_copies import KEPT_SHARE, kept_copies
from kiwi.problem.solved import Start
from kiwi.problem.translation import follow
from kiwi.solver import SolveResult, SolveStatus, evaluate, solve
from kiwi.solver.effort import EFFORTS, WORK_PER_SECOND, Allowance

SEARCH = "search"
"""The value of `explain`'s `operator` that stands for the search itself."""

_Plan = TypeVar("_Plan", bound=PlanRecord)


@dataclass(frozen=True)
class Explanation:
    """The explanation of one operator of a plan.

    - `decision`: the decision, with its costs and memory, the price *alone* of its nearest
      alternatives, and the reasons why others were impossible.
    - `forced`: the alternatives with the figures of the plan if forced; empty if none was asked
      for.
    """

    plan: PlanRecord
    decision: Decision
    forced: tuple[ForcedAlternative, ...]

    def __str__(self) -> str:
        return explanation_text(document(self.plan), self.decision.unit, self.forced)


@overload
def explain(plan: PlanRecord, operator: Literal["search"]) -> SearchExplanation: ...
@overload
def explain(
    plan: PlanRecord, operator: int | str, *, forced: int = 3, time_limit_seconds: float = 100.0
) -> Explanation: ...
def explain(
    plan: PlanRecord, operator: int | str, *, forced: int = 3, time_limit_seconds: float = 100.0
) -> Explanation | SearchExplanation:
    """Explains one operator, or the search that found the plan.

    - `operator`: the index of a decision, or a part of its opcode, name stack or source line
      (`"gpt.py:85"`). If several operators match, the costliest is explained. `"search"` explains
      the search: its attempts in order, and the attempts that made the plan. An operator whose name
      contains "search" is reached by its index.
    - `forced`: the number of alternatives for which the problem is solved again, each with the
      effort "quick".
    - `time_limit_seconds`: the time limit of each of these searches.

    **Raises:** `InvalidArgumentError` if there is no such operator, or if the plan's operators have
    no prices, as in a schedule on one device.
    """
    if operator == SEARCH:
        return SearchExplanation(plan.history)
    # If operators have no prices, a plan from a file has no decisions.
    if not plan.decisions or any(decision.costs is None for decision in plan.decisions):
        raise InvalidArgumentError(
            f"The operators of a plan by {plan.planner} have no prices of their own.",
            topic=topics.UNPRICED_OPERATORS,
        )
    unit = find_operator(plan, operator)
    decision = plan.decisions[unit]
    if not forced or plan.origin is None:
        return Explanation(plan, decision, ())
    start = plan.breakdown.solution_of(plan.origin.planning)
    allowed = Allowance(EFFORTS["quick"] * WORK_PER_SECOND, time_limit_seconds)
    forcing = _Forcing(plan.origin, start, unit, allowed)
    return Explanation(
        plan, decision, tuple(map(forcing.forced, decision.priced.alternatives[:forced]))
    )


def find_operator(plan: PlanRecord, operator: int | str) -> int:
    """Returns the unit that `operator` names in `explain`; raises as `explain` does."""
    count = len(plan.decisions)
    if isinstance(operator, int):
        if not 0 <= operator < count:
            raise InvalidArgumentError(
                f"There is no operator {operator}; the plan has {count}.",
                topic=topics.NO_SUCH_OPERATOR,
                suggestion="The index of a decision in plan.decisions.",
            )
        return operator
    if not isinstance(operator, str):
        raise InvalidArgumentError(
            f"{operator!r} is neither the index nor the name of an operator.",
            topic=topics.NO_SUCH_OPERATOR,
            suggestion="Pass the index of a decision in plan.decisions, or a part of a name.",
        )
    matching = [
        k
        for k, decision in enumerate(plan.decisions)
        if any(
            operator in text
            for text in (decision.opcode, decision.name_stack, decision.source_line)
        )
    ]
    if not matching:
        raise InvalidArgumentError(
            f"No operator's opcode, name stack or source line contains {operator!r}.",
            topic=topics.NO_SUCH_OPERATOR,
            suggestion="plan.decisions lists all of them.",
        )

    def seconds(unit: int) -> float:
        costs = plan.decisions[unit].costs
        return 0.0 if costs is None else costs.total_seconds

    return max(matching, key=seconds)


@dataclass(frozen=True, eq=False)
class _Forcing:
    """Pins a unit of a plan to one alternative after another. `start` is the plan's solution."""

    origin: Origin
    start: Sequence[int]
    unit: int
    allowed: Allowance

    def forced(self, alternative: Alternative) -> ForcedAlternative:
        """The figures of the best plan with the alternative, if all other choices may change."""
        times = alternative.recompute_at, alternative.fetch_at
        wanted = (alternative.reads, alternative.results, *times)
        planning = self.origin.planning
        allowed = planning.unit_nodes[self.unit].options_where(
            lambda strategy, option: (
                (strategy.reads, strategy.results, option.recompute_at, option.fetch_at) == wanted
            )
        )
        result = self._solved(allowed)
        alone = follow(planning, self.start, self.unit, allowed)
        cheapest = self._with_copies_kept(result, alone)
        change = alternative.change_seconds
        proven = result.bound, self._reason(result), alternative.fetch_at
        return ForcedAlternative(*wanted[:3], change, *cheapest, *proven)

    def _solved(self, allowed: Sequence[int]) -> SolveResult:
        """Solves the problem again with the unit restricted to `allowed`. The search starts from
        the plan's own choices, with the unit at its cheapest allowed option."""
        pinned, settings = pin(self.origin.planning, self.unit, allowed), self.origin.settings
        return solve(
            pinned.problem,
            solver=settings.solver,
            time_limit_seconds=self.allowed.seconds,
            work_limit=int(self.allowed.work),
            seed=settings.seed,
            gap=settings.gap,
            warm_start=follow(pinned, self.start, self.unit, allowed),
        )

    def _with_copies_kept(
        self, result: SolveResult, alone: Sequence[int]
    ) -> tuple[float | None, int | None]:
        """Returns the time and the peak of the solution with kept copies. If the plan in which
        nothing else changes (`alone`) is faster with kept copies, its time and peak are
        returned."""
        if result.solution is None:
            return result.objective, result.peak_bytes
        planning, prices = self.origin.planning, []
        for solution in (result.solution, alone):
            kept_reads, _ = kept_copies(planning, planning, solution, self.allowed.part(KEPT_SHARE))
            restricted = planning.restricted(solution, kept_reads).problem
            priced = evaluate(restricted, [0] * len(restricted.nodes))
            if priced.feasible:
                prices.append((priced.cost, priced.peak_bytes))
        return min(prices, default=(result.objective, result.peak_bytes))

    def _reason(self, result: SolveResult) -> str:
        if result.solution is not None:
            return ""
        if result.status is SolveStatus.INFEASIBLE:
            return (
                f"no plan within {self.origin.settings.memory_budget_bytes} bytes does so (proven)"
            )
        least = result.least_peak_bytes
        return "no plan was found" + (f"; the least peak found is {least} bytes" if least else "")


def pin(planning: PlanningProblem, unit: int, allowed: Sequence[int]) -> PlanningProblem:
    """Returns the problem with a unit restricted to the options `allowed`."""
    nodes, place = list(planning.problem.nodes), len(planning.sources) + unit
    penalty = np.full(nodes[place].costs.shape, np.inf)
    penalty[list(allowed)] = 0.0
    nodes[place] = replace(nodes[place], costs=nodes[place].costs + penalty, parts={})
    return replace(planning, problem=replace(planning.problem, nodes=tuple(nodes)))


def origin_of(plan: PlanRecord) -> Origin:
    """Returns the origin of a plan.

    **Raises:** `InvalidArgumentError` if the origin is not known.
    """
    if plan.origin is None:
        raise InvalidArgumentError(
            "The problem that this plan solves cannot be formulated.",
            topic=topics.NO_PROBLEM,
        )
    return plan.origin


def what_if(
    plan: _Plan,
    operator: int | str,
    *,
    sharding: jax.sharding.PartitionSpec | None = None,
    residency: str | None = None,
    time_limit_seconds: float | None = None,
    verify: str | None = None,
) -> _Plan:
    """Returns the best plan with one operator pinned.

    - `operator`: as for `explain`.
    - `sharding`: the sharding of the operator's first result; None leaves the choice open.
    - `residency`: "keep", "recompute" or "offload"; None leaves the choice open.
    - `time_limit_seconds`: as for `kiwi.plan`; by default the limit of this plan's search.
    - `verify`: as for `kiwi.plan`. By default the new plan is predicted for this plan's compiler
      and not compiled.

    **Raises:** `InvalidArgumentError` if the operator has no such option; `InfeasibleBudgetError`
    and `NoPlanFoundError` as `kiwi.plan` does.
    """
    origin = origin_of(plan)
    if residency is not None:
        check_known(residency, RESIDENCIES, "residency")
    planning = origin.planning
    unit = find_operator(plan, operator)
    allowed = _allowed(plan, planning, unit, sharding, residency)
    pinned = pin(planning, unit, allowed)
    start = follow(pinned, plan.breakdown.solution_of(planning), unit, allowed)
    settings = replace(
        origin.settings,
        verify=verify or origin.settings.verify,
        time_limit_seconds=time_limit_seconds or origin.settings.time_limit_seconds,
    )
    try:
        return origin.planner.make(
            origin.step, settings, Start(pinned, start), is_checked=verify is not None
        )
    except InfeasibleBudgetError as error:
        raise InfeasibleBudgetError(
            f"With operator {unit} pinned: {error.what}",
            cause=error.cause,
            suggestion="Another sharding or residency, or a larger budget.",
            least_peak_bytes=error.least_peak_bytes,
        ) from error


def _allowed(
    plan: PlanRecord,
    planning: PlanningProblem,
    unit: int,
    sharding: jax.sharding.PartitionSpec | None,
    residency: str | None,
) -> list[int]:
    node = planning.unit_nodes[unit]
    wanted = None
    if sharding is not None:
        rank = node.strategies[0].results[0].rank if node.strategies[0].results else 0
        wanted = (TensorSharding.from_partition_spec(sharding, rank, plan.mesh.axis_names),)
    options = node.options_where(
        lambda strategy, option: (
            residency in (None, option.name) and wanted in (None, strategy.results[:1])
        )
    )
    if not options:
        known = sorted(
            {
                plan.mesh.describe(strategy.results[0])
                for strategy in node.strategies
                if strategy.results
            }
        )
        raise InvalidArgumentError(
            f"Operator {unit} ({plan.decisions[unit].opcode}) has no option with "
            f"sharding={sharding}, residency={residency}.",
            topic=topics.NO_SUCH_OPTION,
            cause="; ".join(plan.decisions[unit].priced.excluded)
            or "Options that others beat in time and memory are left out.",
            suggestion="Layouts of its result that can be planned: " + ", ".join(known) + ".",
        )
    return options
