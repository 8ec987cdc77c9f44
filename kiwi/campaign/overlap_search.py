"""The program whose collectives overlap with computation: which plan has room for it.

Overlapping programs need more memory than their plan: collectives begin early, and what they wait
for and yield is held the longer. Only such programs are compiled here, few of them.

1. The first plan is compiled with copies that begin ahead of their readers, in the way that hides
   most. Where its program waits for communication, it is compiled in the compiler's other ways.
   Where it is over the budget, so is the program whose matmuls wait for gradients, which holds
   less.
2. The fastest of these programs says how all further plans are compiled; of those as fast, the
   smallest.
3. While it is over the budget, plans of less memory follow. The first limit falls by what the
   program is over; from there on it falls by what is still over, or rises half of the way to a plan
   that was too large. So does a plan that needs no ties, where steps were tied to fit.
4. If none fits, the smallest plan is compiled without copies ahead of their readers.
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
from kiwi.campaign.barrier_levels import with_copies_ahead, with_gradients_in_time
from kiwi.campaign.history import History
from kiwi.campaign.limits import Measured, OverlapLimits
from kiwi.campaign.proposer import P, Proposal
from kiwi.errors import CompileCheckError
from kiwi.plans.plan import Plan
from kiwi.xla.compilers import Begin

NO_ROOM = (
    "Collectives do not overlap with computation: no plan was found that has room for that and is "
    "faster so."
)

NO_GAIN = "Collectives do not overlap with computation: the compiled schedule is faster so."

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
        return (with_gradients_in_time(ahead) if self.gradients_in_time else None) or ahead


class OverlapSearch(Generic[P]):
    """Searches once; `found`: the fastest program within the budget so far."""

    def __init__(
        self, budget_bytes: int, compiles: Sequence[Begin], history: History | None = None
    ) -> None:
        self._budget_bytes, self._compiles = budget_bytes, compiles
        self._history = history or History()
        self.found: P | None = None

    def run(self, first: P, propose: Propose[P], most_seconds: float = math.inf) -> P | None:
        """The fastest program within the budget that was found, of the first plan or of one of less
        memory; None if there is none.

        - `first`: a plan, compiled or not; its own program does not matter.
        - `most_seconds`: no plan is compiled that is expected to take longer.
        """
        chosen = self._first_program(first)
        if chosen is None:
            return None
        form, program = chosen
        aims, programs = _Aims(self._budget_bytes), [program]
        for tried in range(shares.MOST_OVERLAP_PLANS):
            seconds = min(shares.OVERLAP_GAIN * self._seconds, most_seconds)
            with self._history.within(LESS_MEMORY):
                proposal = aims.next(programs[-1], tried, seconds, propose)
                found = None if proposal is None else self._program(OVERLAPPING, proposal, form)
            if found is None:
                break
            programs.append(found)
        if self.found is None:
            smallest = min(programs, key=_peak_bytes)
            self._without_copies_ahead(smallest, form)
        return self.found

    @property
    def _seconds(self) -> float:
        return math.inf if self.found is None else compiled_seconds(self.found.plan)

    def _first_program(self, first: P) -> tuple[_Form, P] | None:
        """The program of the first plan in the form in which all others are compiled."""
        forms = [_Form(way) for way in self._ways(first.plan)]
        programs: list[tuple[_Form, P]] = []
        while forms and not programs:  # XLA does not compile every program in every way.
            form = forms.pop(0)
            found = self._program(OVERLAPPING, first, form)
            programs += [] if found is None else [(form, found)]
        if not programs:
            return None
        form, program = programs[0]
        begun = [
            (other, self._begun(attempt, first, other))
            for attempt, other in self._others(program.plan, form, forms)
        ]
        programs += [(other, found) for other, finish in begun if (found := finish()) is not None]
        most_seconds = shares.AS_FAST * min(compiled_seconds(p.plan) for _, p in programs)
        as_fast = [each for each in programs if compiled_seconds(each[1].plan) <= most_seconds]
        return min(as_fast, key=lambda each: _peak_bytes(each[1]))

    def _others(
        self, program: Plan, form: _Form, in_other_ways: Sequence[_Form]
    ) -> Iterator[tuple[Attempt, _Form]]:
        """The forms that may be faster than the first program, or smaller where that is over the
        budget."""
        is_over = self._over_bytes(program) > 0
        if is_over or _waits(program):
            yield from ((OTHER_WAY, other) for other in in_other_ways)
        in_time = replace(form, gradients_in_time=True)
        if is_over and in_time.emitted(without_forms(program)).execution.gradients_in_time:
            yield GRADIENTS_IN_TIME, in_time

    def _ways(self, plan: Plan) -> list[int]:
        """The compiler's ways to overlap that are tried, the most promising first: those that wait
        for reductions last where the plan hides some."""
        without_sums = plan.execution.compiler.ways_without_sums
        hides_sums = plan.estimate.hidden_sums_seconds > 0
        ways = range(len(self._compiles))
        return sorted(ways, key=lambda way: hides_sums and way in without_sums)[: shares.MOST_WAYS]

    def _without_copies_ahead(self, smallest: P, form: _Form) -> None:
        bare = replace(smallest, plan=without_forms(smallest.plan))
        if with_copies_ahead(bare.plan) is not None:
            self._program(WITHOUT_COPIES_AHEAD, bare, replace(form, copies_ahead=False))

    def _program(self, attempt: Attempt, proposal: P, form: _Form) -> P | None:
        return self._begun(attempt, proposal, form)()

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
    execution = replace(plan.execution, copies_ahead=False, gradients_in_time=False)
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
    the last limit, None at first.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._limits = OverlapLimits(budget_bytes)
        self._high: Plan | None = None
        self._asked_bytes: int | None = None

    def next(self, program: P, tried: int, seconds: float, propose: Propose[P]) -> P | None:
        """The plan whose program of the form of `program`, which is over the budget, may fit, where
        it promises to take less."""
        aim = program.plan
        limit_bytes = self._limit_after(aim, tried)
        # If the next plan's program is as far from its prediction as one of those beside it.
        most_seconds = seconds / min(_off(p) for p in (aim, self._high or aim))
        if self._high is not None and self._high.estimate.step_seconds >= most_seconds:
            return None  # Plans between that one and a smaller one are slower than it.
        while limit_bytes is not None:
            self._asked_bytes = limit_bytes
            if (proposal := propose(limit_bytes, most_seconds)) is not None:
                return proposal
            limit_bytes = self._limits.after_refusal(limit_bytes)
        return None

    def _limit_after(self, aim: Plan, tried: int) -> int | None:
        planned_bytes = aim.estimate.peak_bytes
        # The first plan fills what it is predicted to need.
        asked_bytes = planned_bytes if self._asked_bytes is None else self._asked_bytes
        measured = Measured(asked_bytes, planned_bytes, _overlapping_bytes(aim))
        limit_bytes = self._limits.after_program(
            measured, tried, is_tied=bool(aim.execution.tied_steps)
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


def _peak_bytes(program: Proposal) -> int:
    return _overlapping_bytes(program.plan)


def _off(plan: Plan) -> float:
    """The compiled schedule over the predicted one; 1 with tied steps: little overlaps there."""
    return 1.0 if plan.execution.tied_steps else compiled_seconds(plan) / plan.estimate.step_seconds
