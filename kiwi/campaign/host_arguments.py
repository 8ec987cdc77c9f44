"""The choice of arguments that lie in host memory, if Kiwi decides that (`offload_arguments`).

The candidates, and the order in which sets of them grow (`host_sets`), are described in
docs/guides/host_memory.md, "Arguments". The smallest set with which the step fits is sought by
halves. Then larger sets are tried until one is slower. For each set the step is planned as a whole,
without a compiler and with little effort. The set of the fastest plan is planned with all effort
and compiled. If none of its plans fits, the next larger set follows. If the step fits without any
set, the faster plan is the answer, by estimate and as compiled.
"""

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kiwi.calls.constraints import slash_path
from kiwi.calls.host_memory import OnHost, can_be_copied, on_host
from kiwi.calls.replaced_arguments import replaced_arguments
from kiwi.campaign import shares
from kiwi.campaign.attempts import HOST_ARGUMENTS
from kiwi.campaign.offloading import gains
from kiwi.errors import BudgetNotMetError, InfeasibleBudgetError, NoPlanFoundError
from kiwi.hlo.graph import Phase
from kiwi.hlo.phases import phases
from kiwi.messages import Note, topics
from kiwi.options import Settings
from kiwi.plans.history import Outcome, Trial
from kiwi.plans.plan import Plan
from kiwi.problem.step import StepToPlan
from kiwi.sizes import format_bytes

_SHOWN = 3
"""The number of arguments that a note lists."""

_REFUSALS = (BudgetNotMetError, InfeasibleBudgetError, NoPlanFoundError)

Trace = Callable[[OnHost], StepToPlan]
"""Traces the step with some arguments on the host."""
Make = Callable[[StepToPlan, Settings], Plan]


def host_sets(step: StepToPlan, given: Mapping[int, str]) -> list[frozenset[int]]:
    """Sets of flat arguments, each with more than the one before. Arguments with a `given` memory
    kind are in each."""
    late, early = _candidates(step, given.keys())
    found = [on_host(given)]
    for group, parts in (
        (late, shares.LATE_ARGUMENT_SHARES),
        (early, shares.EARLY_ARGUMENT_SHARES),
    ):
        base = found[-1]
        sets = (base | _first(step, group, part) for part in parts)
        found.extend(each for each in dict.fromkeys(sets) if each != base)
    return found


def plan_with_host_arguments(
    trace: Trace, given: Mapping[int, str], settings: Settings, make: Make
) -> Plan:
    """The fastest plan found over the sets of arguments on the host. `given`: as in `host_sets`. If
    no set has a plan, the error of `make` for the largest set is raised."""
    there = on_host(given)
    sets = host_sets(trace(OnHost(there)), given)
    return _Search(trace, there, settings, make).run(sets)


@dataclass(frozen=True)
class _Search:
    trace: Trace
    given: frozenset[int]
    settings: Settings
    make: Make

    def run(self, sets: Sequence[frozenset[int]]) -> Plan:
        predicted = self._predicted_seconds(sets)
        best = min(predicted, key=predicted.__getitem__, default=len(sets) - 1)
        # Larger sets follow the fastest: they need less memory, should it not fit as compiled.
        plans = functools.partial(self._first_plan, sets[best:])
        plain = self._plan_or_none(sets[0], self.settings) if best and 0 in predicted else None
        if plain is None:
            return _with_sets(plans(), predicted)
        try:
            found = plans()
        except _REFUSALS:
            return _with_sets(plain, predicted)
        return _with_sets(found if gains(found, plain) else plain, predicted)

    def _predicted_seconds(self, sets: Sequence[frozenset[int]]) -> dict[int, float]:
        """Predicted seconds of a step by the number of the set, for the planned sets that have a
        plan."""
        quick = replace(self.settings, verify=None, effort="quick", on_progress=None)
        found: dict[int, float] = {}

        def has_plan(number: int) -> bool:
            if number not in found:
                plan = self._plan_or_none(sets[number], quick)
                found[number] = math.inf if plan is None else plan.estimate.step_seconds
            return found[number] < math.inf

        # Larger sets need less of the device's memory.
        number = 0 if has_plan(0) else bisect.bisect_left(range(len(sets)), True, 1, key=has_plan)
        for larger in range(number + 1, len(sets)):
            if not has_plan(larger) or found[larger] >= found[larger - 1]:
                break
        return {number: seconds for number, seconds in found.items() if seconds < math.inf}

    def _first_plan(self, sets: Sequence[frozenset[int]]) -> Plan:
        """The plan of the first set that has one; raises the last refusal if none has."""
        *others, last = sets
        found = (self._plan_or_none(arguments, self.settings) for arguments in others)
        plan = next((plan for plan in found if plan is not None), None)
        return plan or self._plan(last, self.settings)

    def _plan_or_none(self, arguments: frozenset[int], settings: Settings) -> Plan | None:
        try:
            return self._plan(arguments, settings)
        except _REFUSALS:
            return None

    def _plan(self, arguments: frozenset[int], settings: Settings) -> Plan:
        step = self.trace(OnHost(arguments))
        plan = self.make(step, settings)
        return replace(plan, notes=(*plan.notes, *_notes(step, arguments - self.given)))


def _with_sets(plan: Plan, predicted: Mapping[int, float]) -> Plan:
    """The plan, with the sets that were planned before in its history."""
    sets = tuple(
        Trial(f"{HOST_ARGUMENTS.name}, set {number}", (), Outcome.FOUND, predicted_seconds=seconds)
        for number, seconds in sorted(predicted.items())
    )
    made_by = tuple(len(sets) + number for number in plan.made_by)
    return replace(plan, history=(*sets, *plan.history), made_by=made_by)


def _candidates(step: StepToPlan, given: Collection[int]) -> tuple[list[int], list[int]]:
    """Flat arguments that results replace, the largest first: those that only the update reads, and
    the others."""
    program = step.program
    replaced = set(replaced_arguments(step.call, step.out_tree, step.units).values())
    sizes = {
        k: program.values[value].size_bytes
        for k, value in enumerate(program.arguments)
        if value in replaced and k not in given and can_be_copied(step.call.shapes[k].dtype)
    }
    least_bytes = shares.LEAST_ARGUMENT_SHARE * sum(sizes.values())
    ordered = sorted((k for k in sizes if sizes[k] >= least_bytes), key=lambda k: -sizes[k])
    pairs = zip(program.equations, phases(program), strict=True)
    early = {v for equation, phase in pairs if phase is not Phase.UPDATE for v in equation.reads}
    late = [k for k in ordered if program.arguments[k] not in early]
    return late, [k for k in ordered if program.arguments[k] in early]


def _first(step: StepToPlan, ordered: Sequence[int], share: float) -> frozenset[int]:
    """The first members that make up a share of all bytes."""
    values, arguments = step.program.values, step.program.arguments
    sizes = [values[arguments[k]].size_bytes for k in ordered]
    count = bisect.bisect_left(list(itertools.accumulate(sizes)), share * sum(sizes)) + 1
    return frozenset(ordered[:count])


def _notes(step: StepToPlan, arguments: frozenset[int]) -> Iterator[Note]:
    if not arguments:
        return
    paths = [slash_path(step.call.paths[k]) for k in sorted(arguments)]
    values = (step.program.values[step.program.arguments[k]] for k in arguments)
    size_bytes = sum(value.size_bytes for value in values)
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    yield Note.of(
        topics.ARGUMENTS_ON_HOST,
        f"Of the arguments {format_bytes(size_bytes)} lie in the host's memory by the plan's own "
        f"decision: {', '.join(paths[:_SHOWN])}{more}.",
        arguments=len(paths),
        size_bytes=size_bytes,
    )
