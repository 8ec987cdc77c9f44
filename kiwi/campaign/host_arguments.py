"""The choice of arguments that lie in host memory, if Kiwi decides that (`offload_arguments`).

The candidates are ordered into sets, each a superset of the one before (`host_sets`;
docs/guides/host_memory.md, "Arguments"). The first phase plans the whole step for several sets,
without a compiler and with effort "quick":

1. If the step fits without candidates, this is the first set planned. Otherwise a binary search
   finds the smallest set with which the step fits.
2. Larger sets follow until one is no faster than the set before.

The second phase plans the step for the set of the fastest plan, with all effort and a compiler. If
no plan fits, the next larger set follows. If the step also fits without candidates, the step is
planned so as well. The plan with arguments on the host is the answer only if it is faster, both as
estimated and as compiled (`kiwi.campaign.offloading.gains`).
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
"""A note lists this many arguments by name, and only the number of the others."""

_REFUSALS = (BudgetNotMetError, InfeasibleBudgetError, NoPlanFoundError)
"""The errors after which another set is tried."""

Trace = Callable[[OnHost], StepToPlan]
"""Traces the step with some arguments on the host."""
Make = Callable[[StepToPlan, Settings], Plan]
"""Plans a traced step; raises one of `_REFUSALS` if there is no plan."""


def host_sets(step: StepToPlan, given: Mapping[int, str]) -> list[frozenset[int]]:
    """Returns sets of flat arguments to place on the host, each a superset of the one before.

    - `given`: the memory kinds that the caller gives, by flat argument. Arguments given to the host
      are in every set. The first set has no other arguments.
    """
    late, early = _candidates(step, given.keys())
    nested_sets = [on_host(given)]
    for group, parts in (
        (late, shares.LATE_ARGUMENT_SHARES),
        (early, shares.EARLY_ARGUMENT_SHARES),
    ):
        base = nested_sets[-1]
        larger = (base | _first(step, group, part) for part in parts)
        nested_sets.extend(arguments for arguments in dict.fromkeys(larger) if arguments != base)
    return nested_sets


def plan_with_host_arguments(
    trace: Trace, given: Mapping[int, str], settings: Settings, make: Make
) -> Plan:
    """Returns the fastest plan found over the sets of arguments on the host.

    - `trace`: traces the step for a set. `make`: plans the traced step.
    - `given`: as in `host_sets`.

    **Raises:** the error of `make` for the largest set if no set has a plan.
    """
    there = on_host(given)
    sets = host_sets(trace(OnHost(there)), given)
    return _Search(trace, there, settings, make).run(sets)


@dataclass(frozen=True)
class _Search:
    """The search over nested sets of arguments. `given`: arguments given to the host."""

    trace: Trace
    given: frozenset[int]
    settings: Settings
    make: Make

    def run(self, sets: Sequence[frozenset[int]]) -> Plan:
        """Returns the fastest plan over the sets; raises the last refusal if no set has a plan."""
        predicted = self._predicted_seconds(sets)
        best = min(predicted, key=predicted.__getitem__, default=len(sets) - 1)
        # If no plan of the fastest set fits as compiled, a larger set may: it needs less memory.
        plans = functools.partial(self._first_plan, sets[best:])
        plain = self._plan_or_none(sets[0], self.settings) if best and 0 in predicted else None
        if plain is None:
            return _with_sets(plans(), predicted)
        try:
            offloading = plans()
        except _REFUSALS:
            return _with_sets(plain, predicted)
        return _with_sets(offloading if gains(offloading, plain) else plain, predicted)

    def _predicted_seconds(self, sets: Sequence[frozenset[int]]) -> dict[int, float]:
        """Returns the predicted step time in seconds by the set's index, for the sets that were
        planned and have a plan."""
        quick = replace(self.settings, verify=None, effort="quick", on_progress=None)
        seconds_of_set: dict[int, float] = {}

        def has_plan(number: int) -> bool:
            if number not in seconds_of_set:
                plan = self._plan_or_none(sets[number], quick)
                seconds_of_set[number] = math.inf if plan is None else plan.estimate.step_seconds
            return seconds_of_set[number] < math.inf

        # Whether a set has a plan is monotonic: larger sets need less device memory.
        number = 0 if has_plan(0) else bisect.bisect_left(range(len(sets)), True, 1, key=has_plan)
        for larger in range(number + 1, len(sets)):
            if not has_plan(larger) or seconds_of_set[larger] >= seconds_of_set[larger - 1]:
                break
        return {number: seconds for number, seconds in seconds_of_set.items() if seconds < math.inf}

    def _first_plan(self, sets: Sequence[frozenset[int]]) -> Plan:
        """Returns the plan of the first set that has one; raises the last set's refusal if none
        has."""
        *others, last = sets
        plans = (self._plan_or_none(arguments, self.settings) for arguments in others)
        plan = next((plan for plan in plans if plan is not None), None)
        return plan or self._plan(last, self.settings)

    def _plan_or_none(self, arguments: frozenset[int], settings: Settings) -> Plan | None:
        try:
            return self._plan(arguments, settings)
        except _REFUSALS:
            return None

    def _plan(self, arguments: frozenset[int], settings: Settings) -> Plan:
        """Returns the plan with these arguments on the host; raises a refusal if there is none."""
        step = self.trace(OnHost(arguments))
        plan = self.make(step, settings)
        return replace(plan, notes=(*plan.notes, *_notes(step, arguments - self.given)))


def _with_sets(plan: Plan, predicted: Mapping[int, float]) -> Plan:
    """Returns the plan with one record in its history for each set that was planned in the first
    phase."""
    sets = tuple(
        Trial(f"{HOST_ARGUMENTS.name}, set {number}", (), Outcome.FOUND, predicted_seconds=seconds)
        for number, seconds in sorted(predicted.items())
    )
    made_by = tuple(len(sets) + number for number in plan.made_by)
    return replace(plan, history=(*sets, *plan.history), made_by=made_by)


def _candidates(step: StepToPlan, given: Collection[int]) -> tuple[list[int], list[int]]:
    """Returns the flat arguments that results replace in the next step, in two lists: arguments
    that only the update reads, and the others. Each list begins with the largest argument.

    Arguments with a `given` memory kind are left out. So are small arguments
    (`shares.LEAST_ARGUMENT_SHARE`) and dtypes that cannot be copied to the host.
    """
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
    early = {
        value for equation, phase in pairs if phase is not Phase.UPDATE for value in equation.reads
    }
    late = [k for k in ordered if program.arguments[k] not in early]
    return late, [k for k in ordered if program.arguments[k] in early]


def _first(step: StepToPlan, ordered: Sequence[int], share: float) -> frozenset[int]:
    """Returns the shortest prefix of `ordered` that holds at least a share of its bytes."""
    values, arguments = step.program.values, step.program.arguments
    sizes = [values[arguments[k]].size_bytes for k in ordered]
    count = bisect.bisect_left(list(itertools.accumulate(sizes)), share * sum(sizes)) + 1
    return frozenset(ordered[:count])


def _notes(step: StepToPlan, arguments: frozenset[int]) -> Iterator[Note]:
    """Yields the note about arguments that Kiwi itself has placed on the host, if there are any."""
    if not arguments:
        return
    paths = [slash_path(step.call.paths[k]) for k in sorted(arguments)]
    values = (step.program.values[step.program.arguments[k]] for k in arguments)
    size_bytes = sum(value.size_bytes for value in values)
    unlisted = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    yield Note.of(
        topics.ARGUMENTS_ON_HOST,
        f"Of the arguments {format_bytes(size_bytes)} lie in the host's memory by the plan's own "
        f"decision: {', '.join(paths[:_SHOWN])}{unlisted}.",
        arguments=len(paths),
        size_bytes=size_bytes,
    )
