"""The closed loop: propose a plan under a limit, compile it, learn, propose again.

A `kiwi.campaign.proposer.Proposer` supplies the plans.

1. A plan is proposed under a limit, at first the budget unless the proposer knows better. Where
   there is none, the proposer may name another limit.
2. If that plan is predicted to be faster with collectives that overlap with computation, a program
   that runs so is sought first (`kiwi.campaign.overlap_search`). If there is one that is clearly
   faster than the plan is predicted to be without, nothing else is compiled. If there is one that
   is a little faster, the same plan is compiled with collectives that are waited for as well, and
   is the answer if it is faster.
3. Otherwise the plan is compiled with few barriers. While it is over the budget the proposer learns
   from it and names the next limit, until it has enough.
4. Where the next plan is slower, or there is none, the plan that is over the budget is compiled
   with more barriers (`kiwi.campaign.barrier_levels`), and in other orders of its computations:
   these need equally much memory and compile to peaks some per cent apart (`Orders`). If no plan
   fits so, all is begun anew with a barrier at every step. Without a compiler the estimate of such
   a plan stands in: its peak counts as if compiled.

The fastest plan within the budget is the answer. Where no plan fits, the budget is refused, naming
the nearest one for which a program is known to fit.
"""

import functools
import math
from dataclasses import fields, replace
from itertools import islice
from typing import Generic

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
from kiwi.campaign.overlap_search import (
    NO_GAIN,
    NO_ROOM,
    OverlapSearch,
    compiled_seconds,
    may_gain,
    with_waiting,
    without_forms,
)
from kiwi.campaign.planner_facts import PlannerFacts
from kiwi.campaign.proposer import P, Proposal, Proposer, Refusal
from kiwi.campaign.tools import CLOCK_ENDED_SEARCH, INTERRUPTED_PLAN, Tools
from kiwi.emit.execution import Execution
from kiwi.errors import BudgetNotMetError, InfeasibleBudgetError, KiwiError, NoPlanFoundError
from kiwi.plans.estimate import Estimate
from kiwi.plans.plan import Plan
from kiwi.plans.record import Round
from kiwi.sizes import format_bytes
from kiwi.timings import begin_round
from kiwi.xla.read.compiled_program import CompiledProgram
from kiwi.xla.step import Arrangement


class ClosedLoop(Generic[P]):
    """Plans until a compiled program meets the budget.

    `_best` has the fastest plan within the budget that waits for its collectives, `_overlapping`
    the fastest whose collectives overlap; `_nearest` the smallest beyond the budget, `_postponed`
    the last one beyond it, whose other programs are not compiled yet; `_ties_all` whether plans
    have a barrier at every step: where no compiler shows that fewer will do, or none fits with
    fewer; `_compiled_before` the plans that wait for their collectives and whose programs are
    known; `_first` what was proposed under the first limit; `_search` the search for overlap, once
    there was one.
    """

    def __init__(
        self, planner: PlannerFacts, proposer: Proposer[P], budget_bytes: int, tools: Tools
    ) -> None:
        self._planner, self._proposer = planner, proposer
        self._budget_bytes, self._tools = budget_bytes, tools
        self._rounds: list[Round] = []
        self._orders_left = proposer.orders.of_all
        self._best: P | None = None
        self._overlapping: P | None = None
        self._search: OverlapSearch[P] | None = None
        self._nearest: Plan | None = None
        self._postponed: P | None = None
        self._first: P | Refusal | None = None
        self._compiled_before: list[Plan] = []
        self._ties_all = tools.compile is None

    def run(self) -> Plan:
        """The fastest plan that fits; raises what `propose` raises if there is no plan to compile;
        `BudgetNotMetError` if none fits."""
        refusal: Refusal | None = None
        try:
            if not self._overlap_answers():
                refusal = self._searched()
                self._seek_overlap()
        except KeyboardInterrupt:
            self._overlapping = self._overlapping or (self._search and self._search.found)
            is_any = self._best is not None or self._overlapping is not None
            if not is_any or not self._tools.settings.any_time:
                raise
            self._tools.interruption.has_come = True
        answer = self._answer()
        if answer is not None:
            return self._noted(answer)
        if self._nearest is None:
            assert refusal is not None
            raise refusal
        raise self._not_met(self._with_rounds(self._nearest))

    def _overlap_answers(self) -> bool:
        """Begins with programs whose collectives overlap, if the first plan may gain by that;
        whether one is the answer: the first plan is not predicted to be faster without."""
        limit_bytes = self._proposer.first_limit_bytes
        if not self._tools.compiles_overlapping or limit_bytes > self._budget_bytes:
            return False
        try:
            first = self._on_record(self._proposer.propose(limit_bytes))
        except (InfeasibleBudgetError, NoPlanFoundError) as refusal:
            self._first = refusal
            return False
        self._first = first
        if not may_gain(first.plan):
            return False
        first = _with_needed_barriers(first)
        waiting_seconds = first.plan.estimate.without_overlap.step_seconds
        found = self._overlap_found(first, waiting_seconds)
        if found is None:
            return False
        if _is_clearly_faster(found.plan, first.plan):
            self._overlapping = found
            self._rounds.append(_round(found))
            return True
        self._take(found)
        if self._overlapping is None or self._best is None:
            return False
        is_first = found.plan.solve_result is first.plan.solve_result
        # The first plan's program is expected to be as far from its prediction as this one.
        waits_seconds = waiting_seconds * _off_if_waiting(self._best.plan)
        return is_first or compiled_seconds(self._overlapping.plan) <= waits_seconds

    def _seek_overlap(self) -> None:
        """Seeks a program whose collectives overlap for the best plan, unless one was sought."""
        best, is_done = self._best, self._search is not None
        if best is None or is_done or not self._tools.compiles_overlapping:
            return
        if may_gain(best.plan) and (found := self._overlap_found(best)) is not None:
            self._take(found, best)

    def _overlap_found(self, first: P, most_seconds: float = math.inf) -> P | None:
        """The fastest program within the budget whose collectives overlap, of a plan or of one of
        less memory."""
        compiles, history = self._tools.compiles_overlapping, self._tools.history
        settings, learns = self._tools.settings, self._tools.learns_overlap
        known = settings.corrections.overlap if learns else None
        self._search = OverlapSearch(self._budget_bytes, compiles, history, known)
        propose = functools.partial(self._of_less_memory, first.plan.execution.arrangement)
        return self._search.run(first, propose, most_seconds)

    def _take(self, found: P, known: P | None = None) -> None:
        """Takes an overlapping program with what the same plan needs if it waits for its
        collectives: as `known`, if that is the same plan, else as compiled now."""
        waiting = known
        if waiting is None or waiting.plan.solve_result is not found.plan.solve_result:
            bare = replace(found, plan=without_forms(found.plan))
            waiting = self._compiled(bare, _attempt(bare.plan))
        if waiting.plan.fits:
            self._overlapping = replace(found, plan=with_waiting(found.plan, waiting.plan))

    def _answer(self) -> Plan | None:
        """The best plan: with collectives that overlap, unless the one that waits for them is
        faster as compiled."""
        best, overlapping = self._best, self._overlapping
        if overlapping is not None and (
            best is None or compiled_seconds(overlapping.plan) <= compiled_seconds(best.plan)
        ):
            plan = overlapping.plan
            return self._with_rounds(replace(plan, estimate=estimate_of_overlapping(plan)))
        if best is None:
            return None
        plan = self._with_rounds(best.plan)
        if not self._tools.compiles_overlapping:
            return plan
        plan = replace(plan, estimate=plan.estimate.without_overlap)
        if self._search is None:
            return plan
        return replace(plan, notes=(*plan.notes, NO_ROOM if overlapping is None else NO_GAIN))

    def _searched(self) -> Refusal | None:
        """Runs all rounds, and tries the plans known before; returns the last refusal."""
        refusal = self._run_rounds()
        if self._best is None and not all(each.is_tied for each in self._rounds):
            self._ties_all = True
            refusal = self._run_rounds()
        for other in islice(self._proposer.known(self._best_seconds), 1):
            with self._tools.history.within(KNOWN_START):
                self._tried(other)
        return refusal

    def _noted(self, plan: Plan) -> Plan:
        """The plan, with a note if Ctrl-C ended the search and it is the best so far."""
        if not self._tools.interruption.has_come:
            return plan
        result = replace(plan.solve_result, deterministic=False)
        others = tuple(note for note in plan.notes if note != CLOCK_ENDED_SEARCH)
        return replace(plan, solve_result=result, notes=(*others, INTERRUPTED_PLAN))

    def _run_rounds(self) -> Refusal | None:
        """Runs the rounds; returns the last refusal."""
        limit_bytes: int | None = self._proposer.first_limit_bytes
        refusal: Refusal | None = None
        for _ in range(self._proposer.most_rounds):
            if limit_bytes is None or (
                self._tools.interruption.has_come and self._best is not None
            ):
                break
            try:
                proposal = self._proposed(limit_bytes)
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

    def _proposed(self, limit_bytes: int) -> P:
        """The proposal under a limit; the first one was made already."""
        first, self._first = self._first, None
        if isinstance(first, KiwiError):
            raise first
        return self._proposer.propose(limit_bytes) if first is None else first

    @property
    def _best_seconds(self) -> float:
        return math.inf if self._best is None else _seconds(self._best.plan)

    def _costs_time(self, proposal: P) -> bool:
        """Whether the last plan fits in another order while the next plan would be slower."""
        before = self._postponed
        if before is None or _seconds(proposal.plan) <= (1 + shares.LEAST_SLOWER) * _seconds(
            before.plan
        ):
            return False
        return self._postponed_fits()

    def _tried(self, proposal: P) -> P:
        """The proposal as compiled with the fewest barriers, or the nearest of its orders where
        these come at once; its other programs are postponed while it is over the budget."""
        fewest = proposal if self._ties_all else _with_needed_barriers(proposal)
        tried = self._compiled(fewest, _attempt(fewest.plan))
        if tried.plan.fits:
            return tried
        if self._proposer.orders.at_once:
            return self._nearest_order(tried)
        self._postponed = tried
        return tried

    def _postponed_fits(self) -> bool:
        """Whether the postponed plan fits in another place on the heap, by another scheduler, with
        more barriers, or in another order."""
        given, self._postponed = self._postponed, None
        if given is None:
            return False
        nearest = self._with_more_barriers(given)
        return nearest.plan.fits or self._nearest_order(nearest).plan.fits

    def _with_more_barriers(self, given: P) -> P:
        """A compiled proposal with the first arrangement and barriers with which it fits, or with
        the nearest."""
        nearest = self._on_any_heap(given)
        if given.plan.execution.tied_steps is None:
            return nearest
        for scheduler in given.plan.execution.compiler.schedulers:
            if nearest.plan.fits:
                break
            other = replace(given, plan=arranged(given.plan, Arrangement(scheduler)))
            scheduled = self._on_any_heap(self._compiled(other, OTHER_SCHEDULER))
            nearest = _smaller(nearest, scheduled)
        tied = with_more_tied_steps(
            nearest.plan,
            lambda plan: plan.peak_bytes - self._budget_bytes,
            lambda plan: self._compiled(replace(given, plan=plan), MORE_TIED_STEPS).plan,
        )
        for plan in islice(tied, shares.MOST_TIED_TRIALS):
            nearest = _smaller(nearest, replace(given, plan=plan))
            if plan.peak_bytes > shares.HOPELESS_PROGRAM * nearest.plan.peak_bytes:
                break
        return nearest

    def _on_any_heap(self, tried: P) -> P:
        """A compiled proposal with the first placement of its buffers that fits, or with
        the best."""
        first = tried
        for plan in other_heaps(first.plan):
            other = self._compiled(replace(first, plan=plan), OTHER_HEAP)
            is_hopeless = other.plan.peak_bytes > shares.HOPELESS_PROGRAM * tried.plan.peak_bytes
            tried = _smaller(tried, other)
            if tried.plan.fits or is_hopeless:
                break
        return tried

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

    def _of_less_memory(self, how: Arrangement, limit_bytes: int, most_seconds: float) -> P | None:
        """A plan under a limit, arranged as another one; None where there is none that is expected
        to take less than `most_seconds`."""
        try:
            proposal = self._proposer.propose(limit_bytes)
        except (InfeasibleBudgetError, NoPlanFoundError):
            return None
        if _seconds(proposal.plan) >= most_seconds:
            return None
        bare = _with_needed_barriers(self._on_record(proposal))
        return replace(bare, plan=arranged(bare.plan, how))

    def _on_record(self, proposal: P) -> P:
        """The proposal; its solution is logged here unless the proposer has done so."""
        plan = proposal.plan
        if plan.made_by:
            return proposal
        history = self._tools.history
        number = history.solution(SCHEDULE, proposal.limit_bytes, plan.solve_result)
        return replace(proposal, plan=replace(plan, made_by=(number,)))

    def _compiled(self, proposal: P, attempt: Attempt) -> P:
        """The proposal with its compiled program, on record. A lower limit may lead to a plan that
        was compiled before: its program is known."""
        known = next((p for p in self._compiled_before if _is_same_program(p, proposal.plan)), None)
        begin_round()
        checked = replace(proposal.plan, compiled=self._program(proposal.plan, known))
        self._rounds.append(_round(replace(proposal, plan=checked)))
        if known is not None:
            checked = replace(checked, made_by=known.made_by)
        else:
            checked = self._tools.history.program(
                attempt, checked, proposal.limit_bytes, checked.peak_bytes
            )
            self._compiled_before.append(checked)
        if checked.fits:
            if _seconds(checked) < self._best_seconds:
                self._best = replace(proposal, plan=checked)
        elif self._nearest is None or checked.peak_bytes < self._nearest.peak_bytes:
            self._nearest = checked
        return replace(proposal, plan=checked)

    def _program(self, plan: Plan, known: Plan | None) -> CompiledProgram | None:
        """The program of a plan: that of an equal one, or as compiled now."""
        if known is not None:
            return known.compiled
        begin = self._tools.compile
        return None if begin is None else begin(plan.step)()

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


def _with_needed_barriers(proposal: P) -> P:
    """The proposal with the barriers that it needs: one at every step where its compiler needs
    that."""
    return replace(proposal, plan=with_needed_barriers(proposal.plan) or proposal.plan)


def _is_same_program(one: Plan, other: Plan) -> bool:
    """Whether two plans are emitted as the same program."""
    names = (field.name for field in fields(Execution))
    return all(getattr(one.execution, n) == getattr(other.execution, n) for n in names)


def _attempt(plan: Plan) -> Attempt:
    return ALL_BARRIERS if plan.execution.tied_steps is None else NEEDED_BARRIERS


def _round(proposal: Proposal) -> Round:
    """What is on record of a proposal with its program."""
    plan, compiled = proposal.plan, proposal.plan.compiled
    return Round(
        proposal.limit_bytes,
        proposal.correction_bytes,
        plan.estimate.peak_bytes,
        None if compiled is None else compiled.peak_bytes,
        proposal.solve_seconds,
        0.0 if compiled is None else compiled.compile_seconds,
        plan.execution.tied_steps is None,
    )


def _is_clearly_faster(overlapping: Plan, first: Plan) -> bool:
    """Whether an overlapping program leaves no doubt: neither its plan nor the first one is near
    if it waits for its collectives."""
    waiting = (plan.estimate.without_overlap.step_seconds for plan in (overlapping, first))
    return compiled_seconds(overlapping) <= shares.CLEARLY_FASTER * min(waiting)


def _off_if_waiting(plan: Plan) -> float:
    """The factor by which a program that waits for its collectives is slower than predicted."""
    return compiled_seconds(plan) / plan.estimate.without_overlap.step_seconds


def _smaller(one: P, other: P) -> P:
    """The proposal whose compiled program needs less memory."""
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
