"""The closed loop: propose a plan under a memory limit, compile it, learn, propose again.

A `kiwi.campaign.proposer.Proposer` supplies the plans. A program *waits for its collectives* if no
collective runs beside computation. A program *overlaps* if collectives do.

1. The proposer proposes a plan under a limit, at first the budget unless the proposer names another
   first limit. If there is no plan under that limit, the proposer may name the next limit.
2. If the plan is predicted to be faster with overlap, the loop first looks for a program that
   overlaps (`kiwi.campaign.overlap_search`). If that program is clearly faster than a program that
   waits is predicted to be, nothing else is compiled. Otherwise the same plan is also compiled into
   a program that waits, and the faster program is the answer.
3. Without such a program, the plan is compiled with few barriers. While programs are over the
   budget, the proposer learns from each and names the next limit.
4. If the next plan is slower, or if there is none, the plan over the budget is compiled with more
   barriers (`kiwi.campaign.barrier_levels`) and in other orders of its units (`Orders`). These
   orders are predicted to need the same memory, and their compiled peaks differ. If no plan fits
   so, all rounds begin anew with a barrier at every step. Without a compiler, all plans have a
   barrier at every step, and the estimated peak counts as the compiled one.

Once a program fits, no more than `shares.ENOUGH_PROGRAMS` are compiled.

The fastest plan within the budget is the answer. If no plan fits, the error names the smallest peak
of a program as the nearest budget that can be met.
"""

import functools
import math
from collections.abc import Callable
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
from kiwi.xla.compilers import Begin
from kiwi.xla.read.compiled_program import CompiledProgram
from kiwi.xla.step import Arrangement, Step


class EnoughPrograms(Exception):
    """The loop has compiled as many programs as it may. It ends with the best plan so far."""


class ClosedLoop(Generic[P]):
    """Plans until a compiled program meets the budget.

    - `_best`: the fastest plan within the budget whose program waits for its collectives.
    - `_overlapping`: the fastest plan within the budget whose program overlaps.
    - `_nearest`: the plan over the budget with the smallest peak.
    - `_postponed`: the last plan over the budget, until its other programs are compiled.
    - `_ties_all`: whether plans have a barrier at every step. They do if there is no compiler, or
      if no plan fits with fewer barriers.
    - `_compiled_before`: all plans with a compiled program that waits for its collectives.
    - `_first`: the proposal or the refusal under the first limit, until the first round takes it.
    - `_search`: the search for a program that overlaps; None before it has begun.
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
        self._programs = 0

    def run(self) -> Plan:
        """Returns the fastest plan that fits.

        **Raises:** the proposer's `Refusal` if there is no plan to compile; `BudgetNotMetError` if
        no plan fits.
        """
        refusal: Refusal | None = None
        try:
            if not self._overlap_answers():
                refusal = self._searched()
                self._seek_overlap()
        except KeyboardInterrupt:
            self._overlapping = self._overlapping_so_far
            is_any = self._best is not None or self._overlapping is not None
            if not is_any or not self._tools.settings.any_time:
                raise
            self._tools.interruption.has_come = True
        except EnoughPrograms:
            self._overlapping = self._overlapping_so_far
            if self._overlapping is not None and not self._rounds:
                self._rounds.append(_round(self._overlapping))
        answer = self._answer()
        if answer is not None:
            return self._noted(answer)
        if self._nearest is None:
            raise refusal or _none_in(self._programs)
        raise self._not_met(self._with_rounds(self._nearest))

    def _overlap_answers(self) -> bool:
        """Looks for a program that overlaps if the first plan may gain by overlap.

        Returns whether the found program is the answer. It is unless the first plan is expected to
        be faster as a program that waits for its collectives.
        """
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
        overlapping = self._overlap_found(first, waiting_seconds)
        if overlapping is None:
            return False
        if _is_clearly_faster(overlapping.plan, first.plan):
            self._overlapping = overlapping
            self._rounds.append(_round(overlapping))
            return True
        self._take(overlapping)
        if self._overlapping is None or self._best is None:
            return False
        is_first = overlapping.plan.solve_result is first.plan.solve_result
        # The first plan's program is expected to be slower than predicted by the same factor.
        waits_seconds = waiting_seconds * _off_if_waiting(self._best.plan)
        return is_first or compiled_seconds(self._overlapping.plan) <= waits_seconds

    def _seek_overlap(self) -> None:
        """Looks for a program of the best plan that overlaps, unless the loop has done so."""
        best, is_done = self._best, self._search is not None
        if best is None or is_done or not self._tools.compiles_overlapping:
            return
        if may_gain(best.plan) and (overlapping := self._overlap_found(best)) is not None:
            self._take(overlapping, best)

    def _overlap_found(self, first: P, most_seconds: float = math.inf) -> P | None:
        """Returns the fastest program within the budget that overlaps; None if none was found.

        The search begins with the plan `first` and continues with plans of less memory. It compiles
        no plan of less memory that is predicted to take longer than `most_seconds`.
        """
        begins, history = self._tools.compiles_overlapping, self._tools.history
        compiles = [functools.partial(self._begun, begin) for begin in begins]
        settings, learns = self._tools.settings, self._tools.learns_overlap
        known = settings.corrections.overlap if learns else None
        self._search = OverlapSearch(self._budget_bytes, compiles, history, known)
        propose = functools.partial(self._of_less_memory, first.plan.execution.arrangement)
        return self._search.run(first, propose, most_seconds)

    def _take(self, found: P, known: P | None = None) -> None:
        """Takes an overlapping program if its plan also fits as a program that waits for its
        collectives. The memory and the collectives of the waiting program are recorded with it.

        - `known`: a proposal with a compiled program that waits. If it is not of the same plan, the
          plan is compiled into such a program now.
        """
        waiting = known
        if waiting is None or waiting.plan.solve_result is not found.plan.solve_result:
            bare = replace(found, plan=without_forms(found.plan))
            waiting = self._compiled(bare, _attempt(bare.plan))
        if waiting.plan.fits:
            self._overlapping = replace(found, plan=with_waiting(found.plan, waiting.plan))

    def _answer(self) -> Plan | None:
        """Returns the best plan; None if no plan fits. The overlapping program is preferred unless
        the program that waits for its collectives is faster as compiled."""
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
        """Runs all rounds, then compiles the fastest plan known before; returns the last refusal,
        None if there was none."""
        refusal = self._run_rounds()
        if self._best is None and not all(past.is_tied for past in self._rounds):
            self._ties_all = True
            refusal = self._run_rounds()
        for other in islice(self._proposer.known(self._best_seconds), 1):
            with self._tools.history.within(KNOWN_START):
                self._tried(other)
        return refusal

    def _noted(self, plan: Plan) -> Plan:
        """Returns the plan; if Ctrl-C ended the search, with a note that says so."""
        if not self._tools.interruption.has_come:
            return plan
        result = replace(plan.solve_result, deterministic=False)
        others = tuple(note for note in plan.notes if note != CLOCK_ENDED_SEARCH)
        return replace(plan, solve_result=result, notes=(*others, INTERRUPTED_PLAN))

    def _run_rounds(self) -> Refusal | None:
        """Runs the rounds from the first limit on; returns the last refusal, None if there was
        none."""
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
        """Returns the proposal under a limit. The first one may have been made already (`_first`).

        **Raises:** `Refusal` if there is no plan.
        """
        first, self._first = self._first, None
        if isinstance(first, KiwiError):
            raise first
        return self._proposer.propose(limit_bytes) if first is None else first

    @property
    def _best_seconds(self) -> float:
        return math.inf if self._best is None else _seconds(self._best.plan)

    def _costs_time(self, proposal: P) -> bool:
        """Whether the proposal is slower than the postponed plan, and the postponed plan fits by
        one of its other programs."""
        postponed = self._postponed
        if postponed is None or _seconds(proposal.plan) <= (1 + shares.LEAST_SLOWER) * _seconds(
            postponed.plan
        ):
            return False
        return self._postponed_fits()

    def _tried(self, proposal: P) -> P:
        """Returns the proposal compiled with the fewest barriers.

        If the program is over the budget, the plan's other orders are compiled now, if the proposer
        wants them at once. Otherwise the plan's other programs are postponed.
        """
        fewest = proposal if self._ties_all else _with_needed_barriers(proposal)
        tried = self._compiled(fewest, _attempt(fewest.plan))
        if tried.plan.fits:
            return tried
        if self._proposer.orders.at_once:
            return self._nearest_order(tried)
        self._postponed = tried
        return tried

    def _postponed_fits(self) -> bool:
        """Compiles the other programs of the postponed plan, and returns whether one fits. They
        have other heaps, other schedulers, more barriers, or another order of the units."""
        postponed, self._postponed = self._postponed, None
        if postponed is None:
            return False
        nearest = self._with_more_barriers(postponed)
        return nearest.plan.fits or self._nearest_order(nearest).plan.fits

    def _with_more_barriers(self, given: P) -> P:
        """Returns a compiled proposal with the first arrangement and the first barriers with which
        it fits. If none fits, the returned one needs the least memory."""
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
        """Returns a compiled proposal with the first placement of its buffers that fits. If none
        fits, the returned one needs the least memory."""
        first = tried
        for plan in other_heaps(first.plan):
            other = self._compiled(replace(first, plan=plan), OTHER_HEAP)
            is_hopeless = other.plan.peak_bytes > shares.HOPELESS_PROGRAM * tried.plan.peak_bytes
            tried = _smaller(tried, other)
            if tried.plan.fits or is_hopeless:
                break
        return tried

    def _nearest_order(self, given: P) -> P:
        """Returns the proposal in the first other order of its units that fits. If none fits, the
        returned one needs the least memory.

        Other orders are compiled only if every step is tied. XLA schedules a program with few
        barriers in its own order.
        """
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
        """Returns a plan under a limit in the arrangement `how`, not yet compiled; None if there is
        no plan that is predicted to take less than `most_seconds`."""
        try:
            proposal = self._proposer.propose(limit_bytes)
        except (InfeasibleBudgetError, NoPlanFoundError):
            return None
        if _seconds(proposal.plan) >= most_seconds:
            return None
        bare = _with_needed_barriers(self._on_record(proposal))
        return replace(bare, plan=arranged(bare.plan, how))

    def _on_record(self, proposal: P) -> P:
        """Returns the proposal with the number of its solution in the history. The solution is
        logged here unless the proposer has logged it."""
        plan = proposal.plan
        if plan.made_by:
            return proposal
        history = self._tools.history
        number = history.solution(SCHEDULE, proposal.limit_bytes, plan.solve_result)
        return replace(proposal, plan=replace(plan, made_by=(number,)))

    def _compiled(self, proposal: P, attempt: Attempt) -> P:
        """Returns the proposal with its compiled program, and records the round.

        A lower limit may lead to a plan that was compiled before. Its program is then reused.
        """
        known = next(
            (before for before in self._compiled_before if _is_same_program(before, proposal.plan)),
            None,
        )
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
        """Returns the program of an equal plan if one is `known`, otherwise compiles the plan; None
        if there is no compiler."""
        if known is not None:
            return known.compiled
        begin = self._tools.compile
        return None if begin is None else self._begun(begin, plan.step)()

    def _begun(self, begin: Begin, step: Step) -> Callable[[], CompiledProgram]:
        """Begins to compile a step; raises `EnoughPrograms` if no more programs may be compiled."""
        left = self._tools.programs
        if self._has_enough or (left is not None and left.count <= 0):
            raise EnoughPrograms
        self._programs += 1
        if left is not None:
            left.count -= 1
        return begin(step)

    @property
    def _has_enough(self) -> bool:
        """Whether a program fits, and enough programs are compiled."""
        fits = self._best is not None or self._overlapping_so_far is not None
        return fits and self._programs >= shares.ENOUGH_PROGRAMS

    @property
    def _overlapping_so_far(self) -> P | None:
        """The overlapping program within the budget that was found so far, also if its search has
        not ended; None if there is none."""
        return self._overlapping or (self._search and self._search.found)

    def _with_rounds(self, plan: Plan) -> Plan:
        """Returns the plan with all rounds so far and its notes."""
        plan = replace(plan, rounds=tuple(self._rounds))
        return replace(plan, notes=notes(plan, self._planner, self._tools.settings))

    def _not_met(self, nearest: Plan) -> BudgetNotMetError:
        """Returns the error if no plan fits. `nearest`: the plan with the smallest peak."""
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


def _none_in(programs: int) -> NoPlanFoundError:
    """Returns the error if none of the programs that were compiled fits."""
    return NoPlanFoundError(
        f"None of {programs} compiled programs fits the budget.",
        cause="The budget is close to the least that is possible.",
        suggestion="A larger memory_budget or mesh.",
    )


def _with_needed_barriers(proposal: P) -> P:
    """Returns the proposal with the barriers that it needs: a barrier at every step if its compiler
    needs that."""
    return replace(proposal, plan=with_needed_barriers(proposal.plan) or proposal.plan)


def _is_same_program(one: Plan, other: Plan) -> bool:
    """Whether two plans are emitted as the same program."""
    names = (field.name for field in fields(Execution))
    return all(getattr(one.execution, n) == getattr(other.execution, n) for n in names)


def _attempt(plan: Plan) -> Attempt:
    """Returns the attempt under which a plan's program is logged."""
    return ALL_BARRIERS if plan.execution.tied_steps is None else NEEDED_BARRIERS


def _round(proposal: Proposal) -> Round:
    """Returns the record of a proposal and its program."""
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
    """Whether an overlapping program makes it unnecessary to compile programs that wait for their
    collectives: both its own plan and the first plan are predicted to be clearly slower so."""
    waiting = (plan.estimate.without_overlap.step_seconds for plan in (overlapping, first))
    return compiled_seconds(overlapping) <= shares.CLEARLY_FASTER * min(waiting)


def _off_if_waiting(plan: Plan) -> float:
    """Returns the compiled time over the predicted time of a program that waits for its
    collectives."""
    return compiled_seconds(plan) / plan.estimate.without_overlap.step_seconds


def _smaller(one: P, other: P) -> P:
    """Returns the proposal whose program needs less memory."""
    return min(one, other, key=lambda proposal: proposal.plan.peak_bytes)


def estimate_of_overlapping(plan: Plan) -> Estimate:
    """Returns the estimate of a plan whose compiled program overlaps.

    Reductions that the program does not hide are added to the step time. These are reductions
    behind tied steps, reductions for whose gradients matmuls wait, and all reductions if the
    compiler's way to overlap hides none. Repeated copies are added as well if they could begin
    ahead of their readers and do not.
    """
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
