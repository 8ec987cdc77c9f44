"""The program whose collectives overlap with computation: which plan has room for it.

Overlapping programs need more memory than their plan: collectives begin early, and what they wait
for and yield is held the longer. A program that is a little over the budget gets barriers in front
of what it holds too early. Plans of less memory are compiled as well, the first one of less by what
the fastest program is over; from there on the limit falls by what is still over, or rises half of
the way to a plan that was too large. So are plans that need no ties, where steps were tied to fit.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from kiwi.campaign import shares
from kiwi.campaign.attempt import Attempt
from kiwi.campaign.attempts import (
    COPIES_AHEAD,
    GRADIENTS_IN_TIME,
    LESS_MEMORY,
    OVERLAPPING,
    OVERLAPPING_TIED,
)
from kiwi.campaign.barrier_levels import (
    with_copies_ahead,
    with_gradients_in_time,
    with_more_tied_steps,
)
from kiwi.campaign.history import History
from kiwi.campaign.limits import Measured, OverlapLimits
from kiwi.errors import CompileCheckError
from kiwi.messages import Note, topics
from kiwi.plans.plan import Plan
from kiwi.xla.compilers import Begin
from kiwi.xla.read.compiled_program import CompiledProgram

NO_ROOM = Note.of(
    topics.NO_ROOM,
    "Collectives do not overlap with computation: no plan was found that has room for that and is "
    "faster so.",
)

NO_GAIN = Note.of(
    topics.NO_GAIN,
    "Collectives do not overlap with computation: the compiled schedule is faster so.",
)

Propose = Callable[[int, float], Plan | None]
"""A compiled plan under a limit in bytes that is expected to take less than so many seconds."""


class OverlapSearch:
    """`_found`: the fastest program within the budget."""

    def __init__(
        self, budget_bytes: int, compiles: Sequence[Begin], history: History | None = None
    ) -> None:
        self._budget_bytes, self._compiles = budget_bytes, compiles
        self._history = history or History()
        self._found: Plan | None = None

    def run(self, best: Plan, propose: Propose) -> Plan | None:
        """The fastest program within the budget that was found, of `best`, a compiled plan, or of
        one of less memory."""
        programs, aims = self._programs(best), _Aims(self._budget_bytes)
        for tried in range(shares.MOST_OVERLAP_PLANS):
            if not programs:
                break
            aim = _fastest(programs)
            seconds = min(shares.OVERLAP_GAIN * self._seconds, compiled_seconds(best))
            with self._history.within(LESS_MEMORY):
                plan = aims.next(aim, tried, seconds, propose)
                programs = [] if plan is None else self._programs(plan)
        return self._found

    @property
    def _seconds(self) -> float:
        return math.inf if self._found is None else compiled_seconds(self._found)

    def _programs(self, plan: Plan) -> list[Plan]:
        """A compiled plan whose collectives overlap in each of the ways, and in the fastest one
        with copies that begin ahead of their readers, then also with gradients that are waited for;
        without those that XLA fails to compile."""
        ahead = with_copies_ahead(plan)
        in_time = with_gradients_in_time(ahead or plan)
        variants = ((COPIES_AHEAD, ahead), (GRADIENTS_IN_TIME, in_time))
        others = [(attempt, each) for attempt, each in variants if each is not None]
        if len(self._compiles) == 1:  # Which way is the fastest need not be known first.
            every = ((OVERLAPPING, plan), *others)
            found = self._compiled(plan, [(attempt, each, 0) for attempt, each in every])
        else:
            ways = range(len(self._compiles))
            found = self._compiled(plan, [(OVERLAPPING, plan, way) for way in ways])
            if found:
                way = _way(_fastest(found))
                found += self._compiled(plan, [(attempt, each, way) for attempt, each in others])
        if found:
            least = min(found, key=_peak_bytes)
            tied = [self._tied(each) for each in dict.fromkeys((_fastest(found), least))]
            for each in chain(found, *tied):
                if self._over_bytes(each) <= 0 and compiled_seconds(each) < self._seconds:
                    assert each.compiled is not None and plan.compiled is not None
                    of_waiting = replace(each.compiled, memory=plan.compiled.memory)
                    self._found = replace(each, compiled=of_waiting)
        return found

    def _tied(self, tried: Plan) -> Iterator[Plan]:
        """A program that is a little over the budget, and faster than what was found, with more and
        more barriers in front of what it holds too early."""
        way = _way(tried)
        tied = with_more_tied_steps(
            tried,
            self._over_bytes,
            lambda each: self._begun(OVERLAPPING_TIED, each, each, way)(),
        )
        for _ in range(shares.MOST_TIED_OVERLAPPING):
            is_near = self._over_bytes(tried) <= shares.MOST_OVER_TIED * self._budget_bytes
            is_faster = compiled_seconds(tried) < self._seconds
            if not (is_near and is_faster) or (found := next(tied, None)) is None:
                break
            yield (tried := found)

    def _compiled(self, plan: Plan, emitted: Sequence[tuple[Attempt, Plan, int]]) -> list[Plan]:
        """A plan with the program of each that is emitted for it, in one of the ways, all compiled
        at the same time; without those that XLA fails to compile."""
        begun = [self._begun(attempt, each, plan, way) for attempt, each, way in emitted]
        return [program for finish in begun if (program := finish()) is not None]

    def _begun(
        self, attempt: Attempt, emitted: Plan, plan: Plan, way: int
    ) -> Callable[[], Plan | None]:
        """Begins to compile what is emitted for a plan, in one of the ways; what it returns waits
        for the plan with that program."""
        try:
            program = self._compiles[way](emitted.step)
        except CompileCheckError:  # of options that no plan needs
            self._history.program(attempt, emitted, None, None)
            return lambda: None

        def finish() -> Plan | None:
            found = _finished(emitted, plan, way, program)
            needed_bytes = None if found is None else _peak_bytes(found)
            logged = self._history.program(attempt, found or emitted, None, needed_bytes)
            return None if found is None else logged

        return finish

    def _over_bytes(self, plan: Plan) -> int:
        """By how much a program whose collectives overlap is over the budget."""
        return _peak_bytes(plan) - self._budget_bytes


def _finished(
    emitted: Plan, plan: Plan, way: int, program: Callable[[], CompiledProgram]
) -> Plan | None:
    """A plan with the program of what is emitted for it; None where XLA fails to compile it."""
    assert plan.compiled is not None
    try:
        found = program()
    except CompileCheckError:
        return None
    peak_bytes = max(found.peak_bytes, plan.peak_bytes)
    changes = {"overlapping_peak_bytes": peak_bytes, "time": found.time}
    compiled = replace(plan.compiled, overlap=way, memory=found.memory, **changes)
    return replace(emitted, compiled=compiled)


class _Aims:
    """Under which limits plans are asked for whose programs may fit.

    `_high`: the plan of the least planned peak whose program is over the budget; `_asked_bytes`:
    the last limit, None at first.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._limits = OverlapLimits(budget_bytes)
        self._high: Plan | None = None
        self._asked_bytes: int | None = None

    def next(self, aim: Plan, tried: int, seconds: float, propose: Propose) -> Plan | None:
        """The plan whose program of the kind of `aim`, which is over the budget, may fit, where it
        promises to take less."""
        limit_bytes = self._limit_after(aim, tried)
        # If the next plan's program is as far from its prediction as one of those beside it.
        most_seconds = seconds / min(_off(p) for p in (aim, self._high or aim))
        while limit_bytes is not None:
            self._asked_bytes = limit_bytes
            if (plan := propose(limit_bytes, most_seconds)) is not None:
                return plan
            limit_bytes = self._limits.after_refusal(limit_bytes)
        return None

    def _limit_after(self, aim: Plan, tried: int) -> int | None:
        planned_bytes = aim.estimate.peak_bytes
        # The first plan fills what it is predicted to need.
        asked_bytes = planned_bytes if self._asked_bytes is None else self._asked_bytes
        measured = Measured(asked_bytes, planned_bytes, _peak_bytes(aim))
        limit_bytes = self._limits.after_program(
            measured, tried, is_tied=bool(aim.execution.tied_steps)
        )
        is_over = 0 < self._limits.over_bytes(measured) <= self._limits.most_over_bytes
        if is_over and (self._high is None or planned_bytes < self._high.estimate.peak_bytes):
            self._high = aim
        return limit_bytes


def _fastest(programs: Sequence[Plan]) -> Plan:
    """The fastest program; of those that take as long, the one that needs least."""
    most_seconds = shares.AS_FAST * min(map(compiled_seconds, programs))
    as_fast = (each for each in programs if compiled_seconds(each) <= most_seconds)
    return min(as_fast, key=_peak_bytes)


def _way(program: Plan) -> int:
    assert program.compiled is not None
    return program.compiled.overlap


def _peak_bytes(program: Plan) -> int:
    assert program.compiled is not None and program.compiled.overlapping_peak_bytes is not None
    return program.compiled.overlapping_peak_bytes


def _off(plan: Plan) -> float:
    """The compiled schedule over the predicted one; 1 with tied steps: little overlaps there."""
    return 1.0 if plan.execution.tied_steps else compiled_seconds(plan) / plan.estimate.step_seconds


def compiled_seconds(plan: Plan) -> float:
    """Those of the compiled schedule; infinite where nobody priced it."""
    known = None if plan.compiled is None else plan.compiled.step_seconds
    return math.inf if known is None else known
