"""The closed loop: propose a plan under a limit, compile it, learn, propose again.

A `Proposer` is what a planner supplies: it *proposes* a plan under a memory limit, *learns* from
what a plan needs as compiled, and may put the same computations *in another order*.

1. A plan is proposed under a limit, at first the budget unless the proposer knows better. Where
   there is none, the proposer may name another limit.
2. It is compiled, with few barriers first, and with more while it is over the budget
   (`kiwi.campaign.barrier_levels`). If no plan fits so, all is begun anew with a barrier at every
   step. Without a compiler the estimate of such a plan stands in: its peak counts as if compiled.
3. If the plan is over the budget, other orders of its computations may fit: orders that need
   equally much memory compile to peaks some per cent apart, and take no time of the step, which a
   lower limit does. They are compiled at once, or only where the next plan is slower or there is
   none (`Orders`).
4. The proposer learns from the plan and names the next limit, until it has enough.

The fastest plan within the budget is the answer. Where no plan fits, the budget is refused, naming
the nearest one for which a program is known to fit.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Generic, Protocol, TypeVar

from kiwi.campaign import shares
from kiwi.campaign.attempt import Attempt
from kiwi.campaign.attempts import (
    ALL_BARRIERS,
    KNOWN_START,
    MORE_TIED_STEPS,
    NEEDED_BARRIERS,
    OTHER_HEAP,
    OTHER_ORDER,
    OTHER_SCHEDULER,
    RIVAL,
    SCHEDULE,
)
from kiwi.campaign.barrier_levels import (
    arranged,
    other_heaps,
    with_copies_ahead,
    with_more_tied_steps,
    with_needed_barriers,
)
from kiwi.campaign.notes import notes
from kiwi.campaign.overlap_search import NO_GAIN, NO_ROOM, OverlapSearch, compiled_seconds
from kiwi.campaign.planner_facts import PlannerFacts
from kiwi.campaign.tools import CLOCK_ENDED_SEARCH, INTERRUPTED_PLAN, Tools
from kiwi.errors import BudgetNotMetError, InfeasibleBudgetError, NoPlanFoundError
from kiwi.plans.estimate import Estimate
from kiwi.plans.plan import Plan
from kiwi.plans.record import Round
from kiwi.sizes import format_bytes
from kiwi.timings import begin_round
from kiwi.xla.step import Arrangement

Refusal = InfeasibleBudgetError | NoPlanFoundError


@dataclass(frozen=True)
class Orders:
    """In how many other orders plans are compiled while they are over the budget.

    - `numbers`: one for each order of a plan, from which the proposer derives its seed.
    - `of_all`: how many orders of all plans together.
    - `at_once`: before the next plan is proposed; otherwise where that is slower.
    """

    numbers: range
    of_all: float = math.inf
    at_once: bool = False


@dataclass(frozen=True, eq=False)
class Proposal:
    """A plan, the limit under which it was found, and how long that took.

    - `correction_bytes`: the most that earlier programs added to the prediction or took off the
      limit.
    """

    plan: Plan
    limit_bytes: int
    solve_seconds: float = 0.0
    correction_bytes: int = 0


P = TypeVar("P", bound=Proposal)


class Proposer(Protocol[P]):
    """What a planner supplies to the loop.

    - `most_rounds`: how many plans are proposed at most; `orders`: in how many orders.
    - `cause`, `instead`: of the error, should no plan fit: why, and what else to try.
    """

    most_rounds: int
    orders: Orders
    cause: str
    instead: str

    @property
    def first_limit_bytes(self) -> int:
        """Under which limit the first plan is proposed."""
        ...

    def propose(self, limit_bytes: int) -> P:
        """A plan under a limit, not yet compiled; raises `Refusal` where there is none."""
        ...

    def learn(self, plan: Plan, rounds: Sequence[Round]) -> int | None:
        """The next limit after a plan was compiled, None to end; `rounds` are all until then."""
        ...

    def refused(self, error: Refusal, rounds: Sequence[Round]) -> int | None:
        """The next limit after `propose` raised, None to end."""
        ...

    def reordered(self, proposal: P, number: int) -> P | None:
        """The same computations in another order, None where none may help; `proposal` has its
        compiled program."""
        ...

    def known(self, most_seconds: float) -> Iterator[P]:
        """Plans known before that are predicted to fit, and to take less than so many seconds, the
        fastest first; asked at the end."""
        ...


class ClosedLoop(Generic[P]):
    """Plans until a compiled program meets the budget.

    `_best` has the fastest plan within the budget, `_nearest` the smallest beyond it, `_postponed`
    the last one beyond it, whose other orders are not compiled yet, `_ties_all` whether plans have
    a barrier at every step: where no compiler shows that fewer will do, or none fits with fewer.
    """

    def __init__(
        self, planner: PlannerFacts, proposer: Proposer[P], budget_bytes: int, tools: Tools
    ) -> None:
        self._planner, self._proposer = planner, proposer
        self._budget_bytes, self._tools = budget_bytes, tools
        self._rounds: list[Round] = []
        self._orders_left = proposer.orders.of_all
        self._best: P | None = None
        self._nearest: Plan | None = None
        self._postponed: P | None = None
        self._ties_all = tools.compile is None

    def run(self) -> Plan:
        """The fastest plan that fits; raises what `propose` raises if there is no plan to compile;
        `BudgetNotMetError` if none fits."""
        try:
            refusal = self._searched()
            if self._best is not None:
                return self._noted(self._overlapping(self._best))
        except KeyboardInterrupt:
            if self._best is None or not self._tools.settings.any_time:
                raise
            self._tools.interruption.has_come = True
            waiting = self._best.plan.estimate.without_overlap
            return self._noted(self._with_rounds(replace(self._best.plan, estimate=waiting)))
        if self._nearest is None:
            assert refusal is not None
            raise refusal
        raise self._not_met(self._with_rounds(self._nearest))

    def _searched(self) -> Refusal | None:
        """All rounds, and what was known before; returns the last refusal."""
        refusal = self._run_rounds()
        if self._best is None and not all(each.is_tied for each in self._rounds):
            self._ties_all = True
            refusal = self._run_rounds()
        for other in islice(self._proposer.known(self._best_seconds), 1):
            with self._tools.history.within(KNOWN_START):
                self._tried(other)
        return refusal

    def _noted(self, plan: Plan) -> Plan:
        """The plan, which says so if it is the best by the time of Ctrl-C."""
        if not self._tools.interruption.has_come:
            return plan
        result = replace(plan.solve_result, deterministic=False)
        others = tuple(note for note in plan.notes if note != CLOCK_ENDED_SEARCH)
        return replace(plan, solve_result=result, notes=(*others, INTERRUPTED_PLAN))

    def _run_rounds(self) -> Refusal | None:
        """The rounds; returns the last refusal."""
        limit_bytes: int | None = self._proposer.first_limit_bytes
        refusal: Refusal | None = None
        for _ in range(self._proposer.most_rounds):
            if limit_bytes is None or (
                self._tools.interruption.has_come and self._best is not None
            ):
                break
            try:
                proposal = self._proposer.propose(limit_bytes)
            except (InfeasibleBudgetError, NoPlanFoundError) as error:
                refusal = error
                if self._postponed_fits():
                    break
                limit_bytes = self._proposer.refused(error, self._rounds)
                continue
            proposal = self._on_record(proposal)
            if _seconds(proposal.plan) >= self._best_seconds or self._costs_time(proposal):
                break
            limit_bytes = self._proposer.learn(self._tried(proposal).plan, self._rounds)
        if self._best is None:
            self._postponed_fits()
        return refusal

    @property
    def _best_seconds(self) -> float:
        return math.inf if self._best is None else _seconds(self._best.plan)

    def _costs_time(self, proposal: P) -> bool:
        """Whether the plan before fits in another order, and the next one would be slower."""
        before = self._postponed
        if before is None or _seconds(proposal.plan) <= (1 + shares.LEAST_SLOWER) * _seconds(
            before.plan
        ):
            return False
        return self._postponed_fits()

    def _tried(self, proposal: P) -> P:
        """The proposal as compiled, or the nearest of its orders where these come at once."""
        tried = self._with_fewest_barriers(proposal)
        if tried.plan.fits:
            return tried
        if self._proposer.orders.at_once:
            return self._nearest_order(tried)
        self._postponed = tried
        return tried

    def _with_fewest_barriers(self, proposal: P) -> P:
        """The proposal with the first barriers with which it fits, or with the nearest."""
        plan = None if self._ties_all else with_needed_barriers(proposal.plan)
        if plan is None:
            return self._on_any_heap(proposal, ALL_BARRIERS)
        nearest = self._on_any_heap(replace(proposal, plan=plan), NEEDED_BARRIERS)
        for scheduler in plan.execution.compiler.schedulers:
            if nearest.plan.fits:
                break
            other = arranged(plan, Arrangement(scheduler))
            scheduled = self._on_any_heap(replace(proposal, plan=other), OTHER_SCHEDULER)
            nearest = _smaller(nearest, scheduled)
        tied = with_more_tied_steps(
            nearest.plan,
            lambda plan: plan.peak_bytes - self._budget_bytes,
            lambda plan: self._compiled(replace(proposal, plan=plan), MORE_TIED_STEPS).plan,
        )
        for plan in islice(tied, shares.MOST_TIED_TRIALS):
            nearest = _smaller(nearest, replace(proposal, plan=plan))
            if plan.peak_bytes > shares.HOPELESS_PROGRAM * nearest.plan.peak_bytes:
                break
        return nearest

    def _on_any_heap(self, proposal: P, attempt: Attempt) -> P:
        """The proposal as compiled, placed on the heap in the first way that fits, or the best."""
        tried = self._compiled(proposal, attempt)
        for plan in other_heaps(tried.plan):
            other = self._compiled(replace(proposal, plan=plan), OTHER_HEAP)
            is_hopeless = other.plan.peak_bytes > shares.HOPELESS_PROGRAM * tried.plan.peak_bytes
            tried = _smaller(tried, other)
            if tried.plan.fits or is_hopeless:
                break
        return tried

    def _postponed_fits(self) -> bool:
        """Whether the postponed plan fits in another order."""
        given, self._postponed = self._postponed, None
        return given is not None and self._nearest_order(given).plan.fits

    def _nearest_order(self, given: P) -> P:
        """The first order of the same computations that fits, or the nearest. An order holds only
        where every step is tied: XLA puts a program with few barriers into its own."""
        if not self._ties_all and given.plan.execution.facts.schedules_for_memory:
            return given
        orders = self._proposer.orders
        for number in orders.numbers:
            if self._orders_left <= 0:
                break
            other = self._proposer.reordered(given, number)
            if other is None:
                break
            self._orders_left -= 1
            other = replace(other, plan=replace(other.plan, made_by=given.plan.made_by))
            given = _smaller(given, self._compiled(other, OTHER_ORDER))
            if given.plan.fits:
                break
        return given

    def _overlapping(self, proposal: P) -> Plan:
        """The best plan, one that needs less, or a known one that is nearly as fast, with
        collectives that overlap, where that is no slower as compiled than the best that waits."""
        best = proposal.plan
        waiting = best.estimate.without_overlap
        is_same = waiting.hidden_seconds == best.estimate.hidden_seconds
        if not self._tools.compiles_overlapping or is_same:
            return self._with_rounds(best)
        history = self._tools.history
        search = OverlapSearch(self._budget_bytes, self._tools.compiles_overlapping, history)
        found = search.run(best, functools.partial(self._of_less_memory, best))
        known = self._proposer.known(shares.NEARLY_AS_FAST * _seconds(best))
        for rival in islice((k for k in known if _seconds(k.plan) > _seconds(best)), 1):
            with history.within(RIVAL):
                found = search.run(self._as_arranged(best, rival), lambda *_: None)
        if found is not None and compiled_seconds(found) <= compiled_seconds(best):
            return self._with_rounds(replace(found, estimate=estimate_of_overlapping(found)))
        plan = self._with_rounds(replace(best, estimate=waiting))
        return replace(plan, notes=(*plan.notes, NO_ROOM if found is None else NO_GAIN))

    def _of_less_memory(self, best: Plan, limit_bytes: int, most_seconds: float) -> Plan | None:
        """A compiled plan under a limit; None where there is none that is expected to take less
        than `most_seconds`."""
        try:
            proposal = self._proposer.propose(limit_bytes)
        except (InfeasibleBudgetError, NoPlanFoundError):
            return None
        if _seconds(proposal.plan) >= most_seconds:
            return None
        return self._as_arranged(best, self._on_record(proposal))

    def _as_arranged(self, best: Plan, proposal: P) -> Plan:
        """A proposal as compiled, arranged as the best one."""
        plan = with_needed_barriers(proposal.plan) or proposal.plan
        plan = arranged(plan, best.execution.arrangement)
        attempt = ALL_BARRIERS if plan.execution.tied_steps is None else NEEDED_BARRIERS
        return self._compiled(replace(proposal, plan=plan), attempt).plan

    def _on_record(self, proposal: P) -> P:
        """The proposal; its solution is logged here unless the proposer has done so."""
        plan = proposal.plan
        if plan.made_by:
            return proposal
        history = self._tools.history
        number = history.solution(SCHEDULE, proposal.limit_bytes, plan.solve_result)
        return replace(proposal, plan=replace(plan, made_by=(number,)))

    def _compiled(self, proposal: P, attempt: Attempt) -> P:
        """The proposal with its compiled program, on record."""
        compile, plan = self._tools.compile, proposal.plan
        begin_round()
        compiled = None if compile is None else compile(plan.step)
        self._rounds.append(
            Round(
                proposal.limit_bytes,
                proposal.correction_bytes,
                plan.estimate.peak_bytes,
                None if compiled is None else compiled.peak_bytes,
                proposal.solve_seconds,
                0.0 if compiled is None else compiled.compile_seconds,
                plan.execution.tied_steps is None,
            )
        )
        checked = replace(plan, compiled=compiled)
        checked = self._tools.history.program(
            attempt, checked, proposal.limit_bytes, checked.peak_bytes
        )
        if checked.fits:
            self._best = replace(proposal, plan=checked)
        elif self._nearest is None or checked.peak_bytes < self._nearest.peak_bytes:
            self._nearest = checked
        return replace(proposal, plan=checked)

    def _with_rounds(self, plan: Plan) -> Plan:
        plan = replace(plan, rounds=tuple(self._rounds))
        return replace(plan, notes=notes(plan, self._planner, self._tools.settings))

    def _not_met(self, nearest: Plan) -> BudgetNotMetError:
        peak_bytes, budget = nearest.peak_bytes, format_bytes(self._budget_bytes)
        how = "compiled" if nearest.compiled is not None else "estimated"
        return BudgetNotMetError(
            f"No plan met {budget} per device as {how}; the nearest one, of "
            f"{len(self._rounds)} that were {how}, needs {format_bytes(peak_bytes)}.",
            cause=self._proposer.cause,
            suggestion=f"memory_budget={peak_bytes}, which that plan meets"
            f"{self._proposer.instead}.",
            plan=nearest,
            least_peak_bytes=peak_bytes,
        )


def _smaller(one: P, other: P) -> P:
    """The one whose compiled program needs less."""
    return min(one, other, key=lambda each: each.plan.peak_bytes)


def estimate_of_overlapping(plan: Plan) -> Estimate:
    """Of a program whose collectives overlap, less what its way, and barriers that keep steps in
    order, do not hide."""
    estimate, compiled, execution = plan.estimate, plan.compiled, plan.execution
    sums_seconds, compiler = estimate.hidden_sums_seconds, execution.compiler
    if execution.tied_steps and estimate.sums_behind:
        tied = {execution.schedule.steps[position] for position in execution.tied_steps}
        sums_seconds -= min(sum(estimate.sums_behind[unit] for unit in tied), sums_seconds)
    if execution.gradients_in_time and not execution.facts.sums_beside_one_kernel:
        sums_seconds *= shares.GRADIENTS_HIDDEN
    if compiled is not None and compiled.overlap in compiler.ways_without_sums:
        sums_seconds = 0.0
    is_ahead = with_copies_ahead(plan) is None
    return estimate.hiding(sums_seconds, estimate.hidden_copies_seconds * is_ahead)


def _seconds(plan: Plan) -> float:
    return plan.estimate.step_seconds
