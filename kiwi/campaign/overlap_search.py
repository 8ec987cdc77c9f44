"""The search for a plan whose program overlaps collectives with computation within the budget.

Overlapping programs need more memory than their plan predicts: collectives begin early, and their
operands and results are held longer. This module compiles only such programs, and few of them. The
*form* of a program is the compiler's way to overlap, with or without copies that begin ahead of
their readers, and with or without matmuls that wait for gradients.

1. The first plan is compiled with copies that begin ahead of their readers, in the way that hides
   the most communication.
   - If the program waits for communication and takes longer than planned, or if it is over the
     budget, the plan is compiled in another of the compiler's ways.
   - If waiting explains why the program is late, the search may end at once. A plan that counts on
     less overlap follows (`kiwi.campaign.learnt_overlap`).
   - If the program is over the budget by a little, or by very much, the plan is also compiled with
     matmuls that wait for gradients, which holds less. For plans of less memory, this is done
     whenever their program is over the budget.
2. The fastest of these programs, and the smallest of equally fast ones, determines the form of all
   further programs. If it is far over the budget, a program that is hardly slower and much less
   over the budget determines the form. A second form that is nearly as fast is compiled as well. If
   XLA fails to compile the first plan in the best way, and the program in another way waits, the
   next plan is tried in the best way again.
3. While the program is over the budget, plans of less memory follow. The first limit falls by the
   program's excess. Later limits fall by the remaining excess, or rise halfway to a plan that was
   too large. The limit rises only if linear interpolation between the two plans promises a faster
   plan. If a program fits only with tied steps, a plan of less memory is tried as well.
4. If no program fits, or if the programs of two smaller plans are no smaller, the plan of the
   smallest program is compiled without copies that begin ahead of their readers.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic

from kiwi.campaign import shares
from kiwi.campaign.attempt import Attempt
from kiwi.campaign.attempts import (
    GRADIENTS_IN_TIME,
    LESS_MEMORY,
    OTHER_WAY,
    OVERLAPPING,
    WITHOUT_COPIES_AHEAD,
)
from kiwi.campaign.barrier_levels import (
    with_copies_ahead,
    with_gradients_in_time,
    with_metrics_in_time,
)
from kiwi.campaign.history import History
from kiwi.campaign.learnt_overlap import LessOverlap, reached_overlap
from kiwi.campaign.limits import Measured, OverlapLimits
from kiwi.campaign.proposer import P
from kiwi.errors import CompileCheckError
from kiwi.messages import Note, topics
from kiwi.plans.plan import Plan
from kiwi.xla.compilers import Begin

NO_ROOM = Note.of(
    topics.NO_ROOM,
    "Collectives do not overlap with computation: no plan was found that has room for that and is "
    "faster so.",
)

NO_GAIN = Note.of(
    topics.NO_GAIN,
    "Collectives do not overlap with computation: the compiled schedule is faster so.",
)

Propose = Callable[[int, float], P | None]
"""Returns a plan, not yet compiled, under a limit in bytes (the first argument) that is predicted
to take less than a number of seconds (the second); None if there is none."""


def may_gain(plan: Plan) -> bool:
    """Whether a plan is predicted to be faster if its collectives overlap with computation."""
    waiting_seconds = plan.estimate.without_overlap.step_seconds
    return plan.estimate.step_seconds <= shares.OVERLAP_GAIN * waiting_seconds


@dataclass(frozen=True)
class _Form:
    """The form of an overlapping program.

    - `way`: the index of the compiler's way to overlap.
    - `copies_ahead`: whether copies begin ahead of their readers.
    - `gradients_in_time`: whether matmuls wait for gradients.
    """

    way: int
    copies_ahead: bool = True
    gradients_in_time: bool = False

    def emitted(self, plan: Plan) -> Plan:
        """Returns the plan with the barriers of this form, not yet compiled."""
        ahead = (with_copies_ahead(plan) if self.copies_ahead else None) or plan
        if plan.estimate.peak_bytes >= shares.FULL * plan.memory_budget_bytes:
            ahead = with_metrics_in_time(ahead) or ahead
        return (with_gradients_in_time(ahead) if self.gradients_in_time else None) or ahead


@dataclass(frozen=True)
class _Made(Generic[P]):
    """A plan with its overlapping program, and the program's form."""

    form: _Form
    proposal: P

    @property
    def seconds(self) -> float:
        """The step time of the compiled schedule."""
        return compiled_seconds(self.proposal.plan)


class OverlapSearch(Generic[P]):
    """One search for an overlapping program within the budget.

    - `compiles`: begins to compile in each of the compiler's ways to overlap.
    - `history`: the log of attempts. By default nothing else sees it.
    - `known_overlap`: the part of the overlap that the first plan counts on, if `run` may raise
      `LessOverlap`; None if it may not.
    - `found`: the fastest program within the budget so far; None before there is one.
    """

    def __init__(
        self,
        budget_bytes: int,
        compiles: Sequence[Begin],
        history: History | None = None,
        known_overlap: float | None = None,
    ) -> None:
        self._budget_bytes, self._compiles = budget_bytes, compiles
        self._known_overlap = known_overlap
        self._history = history or History()
        self.found: P | None = None

    def run(self, first: P, propose: Propose[P], most_seconds: float = math.inf) -> P | None:
        """Returns the fastest program found within the budget, of the first plan or of a plan of
        less memory; None if there is none.

        - `first`: the first plan. A program that it already has is ignored.
        - `propose`: returns plans of less memory.
        - `most_seconds`: no plan of less memory is compiled that is predicted to take longer.

        **Raises:** `LessOverlap` if the first program hides less than its plan counts on.
        """
        programs = self._first_programs(first)
        if not programs:
            return None
        refused = self._refused(first.plan, programs[0])
        aims = _Aims(self._budget_bytes, first.limit_bytes)
        aim = smallest = self._aim(programs)
        forms = [refused] if refused else self._comparable(programs, aim)
        larger = 0
        for tried in range(shares.MOST_OVERLAP_PLANS):
            is_refused = refused is not None and not tried
            # A program that was not compiled in the best way says nothing about that way.
            off = 1.0 if is_refused else aims.off(aim.proposal.plan)
            most_next_seconds = min(shares.OVERLAP_GAIN * self._seconds / off, most_seconds)
            with self._history.within(LESS_MEMORY):
                proposal = aims.next(
                    aim.proposal,
                    tried,
                    most_next_seconds,
                    propose,
                    anew=is_refused,
                    rises=self.found is None,
                )
                programs = [] if proposal is None else self._of_next(proposal, forms)
            if not programs:
                break
            fitting = [program for program in programs if self._fits(program)]
            forms = [program.form for program in fitting] or _undominated(programs)
            aim = self._aim(fitting or programs)
            smallest_before, smallest = smallest, min((smallest, *programs), key=_peak_bytes)
            larger += smallest is smallest_before
            if larger > shares.MOST_LARGER and self.found is None:
                break  # Collectives that begin early hold as much in smaller plans.
        if self.found is None:
            self._without_copies_ahead(smallest)
        return self.found

    def _of_next(self, proposal: P, forms: Sequence[_Form]) -> list[_Made[P]]:
        """Returns the programs of a plan of less memory in these forms; if none fits, also with
        matmuls that wait for gradients."""
        programs = self._compiled(proposal, [(OVERLAPPING, form) for form in forms])
        if programs and not any(map(self._fits, programs)):
            in_time = [asked for asked in self._in_time(programs[0]) if asked[1] not in forms]
            programs += self._compiled(proposal, in_time)
        return programs

    def _aim(self, programs: Sequence[_Made[P]]) -> _Made[P]:
        """Returns the program that determines the form and the next limit of further plans."""
        best, smaller = (
            _smallest(programs, factor) for factor in (shares.AS_FAST, shares.SMALLER_FORM)
        )
        over_bytes, less_bytes = (
            self._over_bytes(program.proposal.plan) for program in (best, smaller)
        )
        is_far_over = over_bytes > shares.NEARLY * self._budget_bytes
        return smaller if is_far_over and less_bytes <= shares.LESS_OVER * over_bytes else best

    def _comparable(self, programs: Sequence[_Made[P]], aim: _Made[P]) -> list[_Form]:
        """Returns the forms in which the next plan is compiled: the form of the aim, and at most
        one more whose program is nearly as fast and not much larger. The smaller form differs from
        plan to plan. Forms with the same program as the aim are left out."""
        most_bytes = _peak_bytes(aim) + shares.NEARLY * self._budget_bytes
        others = [program for program in programs if not _is_same(program, aim)]
        others.sort(key=lambda program: program.seconds)
        near = [
            program
            for program in others
            if program.seconds <= shares.COMPARABLE * aim.seconds
            and _peak_bytes(program) <= most_bytes
        ]
        return [aim.form, *(program.form for program in near[:1])]

    def _fits(self, program: _Made[P]) -> bool:
        return self._over_bytes(program.proposal.plan) <= 0

    @property
    def _seconds(self) -> float:
        return math.inf if self.found is None else compiled_seconds(self.found.plan)

    def _first_programs(self, first: P) -> list[_Made[P]]:
        """Returns the programs of the first plan; none if XLA fails to compile it in every way."""
        forms = [_Form(way) for way in self._ways(first.plan)]
        programs: list[_Made[P]] = []
        while forms and not programs:
            programs = self._compiled(first, [(OVERLAPPING, forms.pop(0))])
        if not programs:
            return []
        self._teach(programs[0])
        return programs + self._compiled(first, list(self._others(programs[0], forms)))

    def _teach(self, program: _Made[P]) -> None:
        """Raises `LessOverlap` if a program shows that plans may count on less overlap."""
        if self._known_overlap is None:
            return
        overlap = reached_overlap(program.proposal.plan, self._known_overlap)
        if overlap is not None:
            raise LessOverlap(overlap, self._seconds)

    def _refused(self, first: Plan, made: _Made[P]) -> _Form | None:
        """Returns the best form if XLA failed to compile the first plan in it and the program in
        another form waits for communication; None otherwise."""
        best = _Form(self._ways(first)[0])
        return best if made.form != best and _waits(made.proposal.plan) else None

    def _compiled(self, proposal: P, asked: Sequence[tuple[Attempt, _Form]]) -> list[_Made[P]]:
        """Compiles a plan in several forms at the same time, and returns the programs, without the
        forms in which XLA fails.

        - `asked`: each form, with the attempt under which its program is logged.
        """
        begun = [(form, self._begun(attempt, proposal, form)) for attempt, form in asked]
        finished = [(form, finish()) for form, finish in begun]
        return [_Made(form, program) for form, program in finished if program is not None]

    def _others(
        self, first: _Made[P], in_other_ways: Sequence[_Form]
    ) -> Iterator[tuple[Attempt, _Form]]:
        """Yields the forms that may be faster than the first program, or smaller if the first
        program is over the budget."""
        plan = first.proposal.plan
        is_over = self._over_bytes(plan) > 0
        if is_over or (_waits(plan) and _off(plan) > 1):
            yield from ((OTHER_WAY, other) for other in in_other_ways)
        between = shares.NEARLY * self._budget_bytes, shares.FAR_OVER * self._budget_bytes
        if is_over and not between[0] < self._over_bytes(plan) <= between[1]:
            yield from self._in_time(first)

    def _in_time(self, program: _Made[P]) -> Iterator[tuple[Attempt, _Form]]:
        """Yields the form of a program with matmuls that wait for gradients, unless the program has
        it already or no matmul would wait."""
        form, plan = program.form, without_forms(program.proposal.plan)
        in_time = replace(form, gradients_in_time=True)
        if in_time != form and in_time.emitted(plan).execution.gradients_in_time:
            yield GRADIENTS_IN_TIME, in_time

    def _ways(self, plan: Plan) -> list[int]:
        """Returns the indices of the compiler's ways to overlap that are tried. Ways that also hide
        reductions come first."""
        without_sums = plan.execution.compiler.ways_without_sums
        ways = range(len(self._compiles))
        return sorted(reversed(ways), key=lambda way: way in without_sums)[: shares.MOST_WAYS]

    def _without_copies_ahead(self, smallest: _Made[P]) -> None:
        """Compiles the plan of the smallest program without copies that begin ahead of their
        readers, unless there were none."""
        bare = replace(smallest.proposal, plan=without_forms(smallest.proposal.plan))
        if with_copies_ahead(bare.plan) is not None:
            form = replace(smallest.form, copies_ahead=False)
            self._compiled(bare, [(WITHOUT_COPIES_AHEAD, form)])

    def _begun(self, attempt: Attempt, proposal: P, form: _Form) -> Callable[[], P | None]:
        """Begins to compile a plan in a form, and returns a function that waits for the program.

        The function returns the plan with its program, or None if XLA fails to compile it.
        """
        emitted = form.emitted(without_forms(proposal.plan))
        try:
            program = self._compiles[form.way](emitted.step)
        except CompileCheckError:  # No plan needs the compiler's options for overlap.
            self._history.program(attempt, emitted, None, None)
            return lambda: None

        def finish() -> P | None:
            try:
                compiled_program = program()
            except CompileCheckError:
                self._history.program(attempt, emitted, None, None)
                return None
            needed_bytes = compiled_program.peak_bytes
            overlapping = replace(
                compiled_program, overlap=form.way, overlapping_peak_bytes=needed_bytes
            )
            plan = replace(emitted, compiled=overlapping)
            plan = self._history.program(attempt, plan, proposal.limit_bytes, needed_bytes)
            compiled = replace(proposal, plan=plan)
            if self._over_bytes(plan) <= 0 and compiled_seconds(plan) < self._seconds:
                self.found = compiled
            return compiled

        return finish

    def _over_bytes(self, plan: Plan) -> int:
        """Returns the bytes by which a plan's overlapping program is over the budget."""
        return _overlapping_bytes(plan) - self._budget_bytes


def without_forms(plan: Plan) -> Plan:
    """Returns the plan with the barriers of a program that waits for its collectives, not yet
    compiled."""
    execution = replace(
        plan.execution, copies_ahead=False, gradients_in_time=False, metrics_in_time=False
    )
    return replace(plan, execution=execution, compiled=None)


def with_waiting(overlapping: Plan, waiting: Plan) -> Plan:
    """Returns the plan with the record of both its programs: the memory and the collectives of the
    program that waits for its collectives, and the time of the overlapping one.

    - `overlapping`, `waiting`: the plan with each of its compiled programs.
    """
    assert overlapping.compiled is not None and waiting.compiled is not None
    peak_bytes = max(_overlapping_bytes(overlapping), waiting.compiled.peak_bytes)
    compiled = replace(
        waiting.compiled,
        overlap=overlapping.compiled.overlap,
        overlapping_peak_bytes=peak_bytes,
        time=overlapping.compiled.time,
    )
    return replace(overlapping, compiled=compiled)


class _Aims(Generic[P]):
    """The limits under which plans are proposed whose overlapping programs may fit.

    - `asked_bytes`: the limit of the first plan; in `_asked_bytes`, the limit of the last one.
    - `_high`: the plan with the least predicted peak among plans whose program is over the budget.
    """

    def __init__(self, budget_bytes: int, asked_bytes: int) -> None:
        self._limits = OverlapLimits(budget_bytes)
        self._high: Plan | None = None
        self._asked_bytes = asked_bytes

    def off(self, aim: Plan) -> float:
        """Returns the factor by which the next plan's program is expected to be slower than
        predicted: the smaller factor of the aim and of the plan that was too large."""
        return min(_off(plan) for plan in (aim, self._high or aim))

    def next(
        self,
        program: P,
        tried: int,
        most_seconds: float,
        propose: Propose[P],
        *,
        anew: bool = False,
        rises: bool = True,
    ) -> P | None:
        """Returns the next plan, not yet compiled; None if no plan is promising.

        - `program`: the last plan with its program. The next limit follows from its excess.
        - `tried`: the number of plans of less memory that were tried before.
        - `most_seconds`: the next plan must be predicted to take less.
        - `propose`: returns a plan under a limit.
        - `anew`: whether another plan is looked for even if the program fits.
        - `rises`: whether higher limits follow a refused one. Their programs are expected to be
          over the budget, so this is worthwhile only while no program fits.
        """
        limit_bytes = self._limit_after(program.plan, tried, anew=anew)
        while limit_bytes is not None:
            if self._seconds_below(program.plan, limit_bytes) >= most_seconds:
                return None
            self._asked_bytes = limit_bytes
            if (proposal := propose(limit_bytes, most_seconds)) is not None:
                return proposal
            limit_bytes = self._limits.after_refusal(limit_bytes) if rises else None
        return None

    def _seconds_below(self, known: Plan, limit_bytes: int) -> float:
        """Returns the seconds that a plan under a limit is expected to take.

        The time is interpolated linearly by peak between the plan `known` and the plan that was too
        large, and is at least the latter plan's time. It is 0 if no plan was too large.
        """
        if self._high is None:
            return 0.0
        low, high = (
            (plan.estimate.peak_bytes, plan.estimate.step_seconds) for plan in (known, self._high)
        )
        if not low[0] < limit_bytes < high[0]:
            return high[1]
        share = (limit_bytes - low[0]) / (high[0] - low[0])
        return max(high[1], low[1] + share * (high[1] - low[1]))

    def _limit_after(self, aim: Plan, tried: int, *, anew: bool) -> int | None:
        """Returns the limit after a program, None to end; records the plan if it was too large."""
        planned_bytes = aim.estimate.peak_bytes
        measured = Measured(self._asked_bytes, planned_bytes, _overlapping_bytes(aim))
        limit_bytes = self._limits.after_program(
            measured, tried, is_tied=anew or bool(aim.execution.tied_steps)
        )
        is_over = 0 < self._limits.over_bytes(measured) <= self._limits.most_over_bytes
        if is_over and (self._high is None or planned_bytes < self._high.estimate.peak_bytes):
            self._high = aim
        return limit_bytes


def compiled_seconds(plan: Plan) -> float:
    """Returns the step time of the compiled schedule in seconds; infinity if it has no price."""
    known = None if plan.compiled is None else plan.compiled.step_seconds
    return math.inf if known is None else known


def _waits(plan: Plan) -> bool:
    """Whether the program of a plan waits for communication for a long part of the step
    (`shares.SETTLED`)."""
    time = None if plan.compiled is None else plan.compiled.time
    return time is not None and time.exposed_seconds >= shares.SETTLED * time.step_seconds


def _overlapping_bytes(plan: Plan) -> int:
    assert plan.compiled is not None and plan.compiled.overlapping_peak_bytes is not None
    return plan.compiled.overlapping_peak_bytes


def _peak_bytes(program: _Made[P]) -> int:
    return _overlapping_bytes(program.proposal.plan)


def _smallest(programs: Sequence[_Made[P]], factor: float) -> _Made[P]:
    """Returns the smallest of the programs that take at most `factor` times the fastest one's
    time."""
    most_seconds = factor * min(program.seconds for program in programs)
    return min(
        (program for program in programs if program.seconds <= most_seconds), key=_peak_bytes
    )


def _undominated(programs: Sequence[_Made[P]]) -> list[_Form]:
    """Returns the forms of programs such that no other program is both faster and smaller."""
    return [
        program.form
        for program in programs
        if not any(
            other.seconds < program.seconds and _peak_bytes(other) < _peak_bytes(program)
            for other in programs
        )
    ]


def _is_same(program: _Made[P], other: _Made[P]) -> bool:
    """Whether two programs have the same peak and the same time. Times are compared with a
    tolerance, since they are sums in different orders."""
    is_as_fast = math.isclose(program.seconds, other.seconds)
    return is_as_fast and _peak_bytes(program) == _peak_bytes(other)


def _off(plan: Plan) -> float:
    """Returns the compiled step time over the predicted one. Returns 1 for a program with tied
    steps, in which little overlaps."""
    return 1.0 if plan.execution.tied_steps else compiled_seconds(plan) / plan.estimate.step_seconds
