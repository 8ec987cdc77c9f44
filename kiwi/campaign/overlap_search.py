"""The program whose collectives overlap with computation: which plan has room for it.

Overlapping programs need more memory than their plan: collectives begin early, and what they wait
for and yield is held the longer. Only such programs are compiled here, few of them.

1. The first plan is compiled with copies that begin ahead of their readers, in the way that hides
   most. Where its program waits for communication and takes longer than planned, it is compiled in
   another of the compiler's ways. Where it is late because it waits, the search may end at once: a
   plan that counts on less overlap follows (`kiwi.campaign.learnt_overlap`).
   Where it is a little over the budget, or far, so is the program whose matmuls wait for
   gradients, which holds less; of a plan of less memory wherever its program is over.
2. The fastest of these programs says how all further plans are compiled; of those as fast, the
   smallest. Where that is far over the budget, one that is hardly slower and much less over does
   so. A second form that is nearly as fast is compiled beside it. Where XLA fails to compile the
   first plan in the best way, and the program in another one waits, the next plan is tried in the
   best way again.
3. While it is over the budget, plans of less memory follow. The first limit falls by what the
   program is over; from there on it falls by what is still over, or rises half of the way to a plan
   that was too large, if a plan on the line between the two is expected to be faster. So does a
   plan that needs no ties, where steps were tied to fit.
4. If none fits, or two smaller plans' programs are no smaller, the plan of the smallest program is
   compiled without copies ahead of their readers.
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
"""A plan under a limit in bytes that is expected to take less than so many seconds, not yet
compiled."""


def may_gain(plan: Plan) -> bool:
    """Whether a plan is predicted to be faster if its collectives overlap with computation."""
    waiting_seconds = plan.estimate.without_overlap.step_seconds
    return plan.estimate.step_seconds <= shares.OVERLAP_GAIN * waiting_seconds


@dataclass(frozen=True)
class _Form:
    """How the overlapping program of a plan is made: in one of the compiler's ways, with copies
    that begin ahead of their readers where it has such, and perhaps with gradients in time."""

    way: int
    copies_ahead: bool = True
    gradients_in_time: bool = False

    def emitted(self, plan: Plan) -> Plan:
        """The plan with the barriers of this form, not yet compiled."""
        ahead = (with_copies_ahead(plan) if self.copies_ahead else None) or plan
        if plan.estimate.peak_bytes >= shares.FULL * plan.memory_budget_bytes:
            ahead = with_metrics_in_time(ahead) or ahead
        return (with_gradients_in_time(ahead) if self.gradients_in_time else None) or ahead


@dataclass(frozen=True)
class _Made(Generic[P]):
    """A plan with its overlapping program, and the form in which that was made."""

    form: _Form
    proposal: P

    @property
    def seconds(self) -> float:
        """Those of the compiled schedule."""
        return compiled_seconds(self.proposal.plan)


class OverlapSearch(Generic[P]):
    """Searches once; `found`: the fastest program within the budget so far.

    `known_overlap`: the part of the overlap that the first plan counts on, if `run` may raise
    `LessOverlap`; None if it may not.
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
        """The fastest program within the budget that was found, of the first plan or of one of less
        memory; None if there is none.

        - `first`: a plan, compiled or not; its own program does not matter.
        - `most_seconds`: no plan is compiled that is predicted to take longer.
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
            off = 1.0 if is_refused else aims.off(aim.proposal.plan)  # in the way it was compiled
            most = min(shares.OVERLAP_GAIN * self._seconds / off, most_seconds)
            with self._history.within(LESS_MEMORY):
                proposal = aims.next(
                    aim.proposal, tried, most, propose, anew=is_refused, rises=self.found is None
                )
                programs = [] if proposal is None else self._of_next(proposal, forms)
            if not programs:
                break
            fitting = [each for each in programs if self._fits(each)]
            forms = [each.form for each in fitting] or _undominated(programs)
            aim = self._aim(fitting or programs)
            before, smallest = smallest, min((smallest, *programs), key=_peak_bytes)
            larger += smallest is before
            if larger > shares.MOST_LARGER and self.found is None:
                break  # What begins early does not become less with the plan's memory.
        if self.found is None:
            self._without_copies_ahead(smallest)
        return self.found

    def _of_next(self, proposal: P, forms: Sequence[_Form]) -> list[_Made[P]]:
        """The programs of a plan of less memory; where none fits, also with gradients in time."""
        programs = self._compiled(proposal, [(OVERLAPPING, form) for form in forms])
        if programs and not any(map(self._fits, programs)):
            more = [asked for asked in self._in_time(programs[0]) if asked[1] not in forms]
            programs += self._compiled(proposal, more)
        return programs

    def _aim(self, programs: Sequence[_Made[P]]) -> _Made[P]:
        """The program that says how further plans are compiled, and how much less they need."""
        best, smaller = (_smallest(programs, f) for f in (shares.AS_FAST, shares.SMALLER_FORM))
        over_bytes, less_bytes = (self._over_bytes(p.proposal.plan) for p in (best, smaller))
        is_far_over = over_bytes > shares.NEARLY * self._budget_bytes
        return smaller if is_far_over and less_bytes <= shares.LESS_OVER * over_bytes else best

    def _comparable(self, programs: Sequence[_Made[P]], aim: _Made[P]) -> list[_Form]:
        """The forms that another plan is compiled in: that of the aim, and one more if that was
        nearly as fast and not much larger: which one is smaller differs from plan to plan. A way
        whose program is the same is left out."""
        most_bytes = _peak_bytes(aim) + shares.NEARLY * self._budget_bytes
        others = [each for each in programs if not _is_same(each, aim)]
        others.sort(key=lambda each: each.seconds)
        near = [
            each
            for each in others
            if each.seconds <= shares.COMPARABLE * aim.seconds and _peak_bytes(each) <= most_bytes
        ]
        return [aim.form, *(each.form for each in near[:1])]

    def _fits(self, program: _Made[P]) -> bool:
        return self._over_bytes(program.proposal.plan) <= 0

    @property
    def _seconds(self) -> float:
        return math.inf if self.found is None else compiled_seconds(self.found.plan)

    def _first_programs(self, first: P) -> list[_Made[P]]:
        """The programs of the first plan; none if XLA fails to compile it in every way."""
        forms = [_Form(way) for way in self._ways(first.plan)]
        programs: list[_Made[P]] = []
        while forms and not programs:
            programs = self._compiled(first, [(OVERLAPPING, forms.pop(0))])
        if not programs:
            return []
        self._teach(programs[0])
        return programs + self._compiled(first, list(self._others(programs[0], forms)))

    def _teach(self, program: _Made[P]) -> None:
        """Raises `LessOverlap` if a program of the best way shows that."""
        if self._known_overlap is None:
            return
        overlap = reached_overlap(program.proposal.plan, self._known_overlap)
        if overlap is not None:
            raise LessOverlap(overlap, self._seconds)

    def _refused(self, first: Plan, made: _Made[P]) -> _Form | None:
        """The best form, if XLA failed to compile the first plan in it and the program that was
        made instead waits for communication."""
        best = _Form(self._ways(first)[0])
        return best if made.form != best and _waits(made.proposal.plan) else None

    def _compiled(self, proposal: P, asked: Sequence[tuple[Attempt, _Form]]) -> list[_Made[P]]:
        """The programs of a plan in several forms, compiled at the same time; without those that
        XLA fails to compile."""
        begun = [(form, self._begun(attempt, proposal, form)) for attempt, form in asked]
        found = [(form, finish()) for form, finish in begun]
        return [_Made(form, program) for form, program in found if program is not None]

    def _others(
        self, first: _Made[P], in_other_ways: Sequence[_Form]
    ) -> Iterator[tuple[Attempt, _Form]]:
        """The forms that may be faster than the first program, or smaller where that is over the
        budget."""
        plan = first.proposal.plan
        is_over = self._over_bytes(plan) > 0
        if is_over or (_waits(plan) and _off(plan) > 1):
            yield from ((OTHER_WAY, other) for other in in_other_ways)
        between = shares.NEARLY * self._budget_bytes, shares.FAR_OVER * self._budget_bytes
        if is_over and not between[0] < self._over_bytes(plan) <= between[1]:
            yield from self._in_time(first)

    def _in_time(self, program: _Made[P]) -> Iterator[tuple[Attempt, _Form]]:
        """The form of a program with gradients in time, unless that is its own or the same."""
        form, plan = program.form, without_forms(program.proposal.plan)
        in_time = replace(form, gradients_in_time=True)
        if in_time != form and in_time.emitted(plan).execution.gradients_in_time:
            yield GRADIENTS_IN_TIME, in_time

    def _ways(self, plan: Plan) -> list[int]:
        """The compiler's ways to overlap that are tried, those that also hide reductions first."""
        without_sums = plan.execution.compiler.ways_without_sums
        ways = range(len(self._compiles))
        return sorted(reversed(ways), key=lambda way: way in without_sums)[: shares.MOST_WAYS]

    def _without_copies_ahead(self, smallest: _Made[P]) -> None:
        bare = replace(smallest.proposal, plan=without_forms(smallest.proposal.plan))
        if with_copies_ahead(bare.plan) is not None:
            form = replace(smallest.form, copies_ahead=False)
            self._compiled(bare, [(WITHOUT_COPIES_AHEAD, form)])

    def _begun(self, attempt: Attempt, proposal: P, form: _Form) -> Callable[[], P | None]:
        """Begins to compile a plan in a form; what it returns waits for the plan with that program,
        None if XLA fails to compile it."""
        emitted = form.emitted(without_forms(proposal.plan))
        try:
            program = self._compiles[form.way](emitted.step)
        except CompileCheckError:  # of options that no plan needs
            self._history.program(attempt, emitted, None, None)
            return lambda: None

        def finish() -> P | None:
            try:
                found = program()
            except CompileCheckError:
                self._history.program(attempt, emitted, None, None)
                return None
            needed_bytes = found.peak_bytes
            overlapping = replace(found, overlap=form.way, overlapping_peak_bytes=needed_bytes)
            plan = replace(emitted, compiled=overlapping)
            plan = self._history.program(attempt, plan, proposal.limit_bytes, needed_bytes)
            compiled = replace(proposal, plan=plan)
            if self._over_bytes(plan) <= 0 and compiled_seconds(plan) < self._seconds:
                self.found = compiled
            return compiled

        return finish

    def _over_bytes(self, plan: Plan) -> int:
        """By how much a program whose collectives overlap is over the budget."""
        return _overlapping_bytes(plan) - self._budget_bytes


def without_forms(plan: Plan) -> Plan:
    """The plan with the barriers of a program that waits for its collectives, not yet compiled."""
    execution = replace(
        plan.execution, copies_ahead=False, gradients_in_time=False, metrics_in_time=False
    )
    return replace(plan, execution=execution, compiled=None)


def with_waiting(overlapping: Plan, waiting: Plan) -> Plan:
    """The overlapping program of a plan, with the memory and the collectives of the one that waits
    for its collectives."""
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
    """Under which limits plans are asked for whose programs may fit.

    `_high`: the plan of the least planned peak whose program is over the budget; `_asked_bytes`:
    the last limit.
    """

    def __init__(self, budget_bytes: int, asked_bytes: int) -> None:
        self._limits = OverlapLimits(budget_bytes)
        self._high: Plan | None = None
        self._asked_bytes = asked_bytes

    def off(self, aim: Plan) -> float:
        """By which factor the program of the next plan is expected to be slower than predicted: as
        one of those beside it."""
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
        """The plan whose program of the form of `program`, which is over the budget, may fit, where
        it is predicted to take less than so many seconds; `anew`: another plan even if that fits.
        `rises`: whether a refused limit is followed by higher ones. Their programs are expected to
        be over the budget, so that this is worth it only where none fits yet.
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
        """How long a plan is expected to take under a limit: no less than the plan that was too
        large, and on the line from a smaller one to it."""
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
    """Those of the compiled schedule; infinite where nobody priced it."""
    known = None if plan.compiled is None else plan.compiled.step_seconds
    return math.inf if known is None else known


def _waits(plan: Plan) -> bool:
    """Whether the program of a plan waits for communication for long."""
    time = None if plan.compiled is None else plan.compiled.time
    return time is not None and time.exposed_seconds >= shares.SETTLED * time.step_seconds


def _overlapping_bytes(plan: Plan) -> int:
    assert plan.compiled is not None and plan.compiled.overlapping_peak_bytes is not None
    return plan.compiled.overlapping_peak_bytes


def _peak_bytes(program: _Made[P]) -> int:
    return _overlapping_bytes(program.proposal.plan)


def _smallest(programs: Sequence[_Made[P]], factor: float) -> _Made[P]:
    """The smallest of the programs within a factor of the fastest one's time."""
    most_seconds = factor * min(each.seconds for each in programs)
    return min((each for each in programs if each.seconds <= most_seconds), key=_peak_bytes)


def _undominated(programs: Sequence[_Made[P]]) -> list[_Form]:
    """The forms whose program is faster or smaller than that of each other one."""
    return [
        each.form
        for each in programs
        if not any(
            other.seconds < each.seconds and _peak_bytes(other) < _peak_bytes(each)
            for other in programs
        )
    ]


def _is_same(program: _Made[P], other: _Made[P]) -> bool:
    """Whether two programs cannot be told apart. Their seconds are sums in different orders."""
    is_as_fast = math.isclose(program.seconds, other.seconds)
    return is_as_fast and _peak_bytes(program) == _peak_bytes(other)


def _off(plan: Plan) -> float:
    """The compiled schedule over the predicted one; 1 with tied steps: little overlaps there."""
    return 1.0 if plan.execution.tied_steps else compiled_seconds(plan) / plan.estimate.step_seconds
