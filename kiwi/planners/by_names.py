"""Plans with one residency for each name of `checkpoint_name` (`granularity="names"`).

A *policy* is a residency for each name. The step is traced with the policy in place of the
function's own policies (`kiwi.hlo.checkpoint_names`), so that the planned program is the one that
the framework runs under that policy. The planner of the settings determines its shardings: "joint"
and "alpa" choose them, "xla" takes the ones that XLA propagates. Nothing else is recomputed.

The policy with the fastest estimate is planned and compiled. If its program does not fit, the
policy is left out, and the next one follows. With a compiler, policies that are predicted to be
nearly as fast are compiled as well, and the fastest as compiled is the answer. One reason is that a
policy that fills the memory leaves none for collectives that overlap with computation.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from kiwi.errors import (
    InfeasibleBudgetError,
    InvalidArgumentError,
    KiwiError,
    NoPlanFoundError,
)
from kiwi.hlo.checkpoint_names import DEVICE, OFFLOAD, REMAT
from kiwi.messages import Note, topics
from kiwi.options import Settings
from kiwi.planners.policies import REFUSED, Policy, PolicySearch, Price
from kiwi.planners.policy_model import ModelSearch
from kiwi.planners.registry import planner_named
from kiwi.plans.plan import Plan
from kiwi.problem.step import StepToPlan
from kiwi.sizes import format_bytes
from kiwi.targets.registry import planned_target

Trace = Callable[[Mapping[str, str]], StepToPlan]
"""Traces the step with these residencies, by name."""
Make = Callable[[StepToPlan, Settings], Plan]
"""Plans a traced step and compiles the plan."""

PLANNERS = {"joint": "alpa", "alpa": "alpa", "xla": "xla"}
"""The planners that may be asked for, each with the planner that plans the step of one policy."""

MOST_POLICIES = {"quick": 48, "normal": 192, "thorough": 768}
"""The search ends after pricing this many policies, by effort."""

MOST_COMPILED = 4
"""No more than this many policies are compiled."""

WITHIN = 1.03
"""A policy is not compiled beside the fastest one if its predicted time is more than this multiple
of the fastest one's. Predictions do not separate policies that are closer."""

_UNLIMITED = 2**62
"""A budget in bytes that stands for no limit."""

_REFUSALS = (InfeasibleBudgetError, NoPlanFoundError)


def settings_by_names(settings: Settings) -> Settings:
    """Returns the settings for the plan of one policy.

    **Raises:** `InvalidArgumentError` for a planner that is not in `PLANNERS`.
    """
    if settings.planner_name not in PLANNERS:
        raise InvalidArgumentError(
            f'granularity="names" and planner={settings.planner_name!r} are given.',
            topic=topics.ARGUMENT,
            suggestion=f"One of the planners {', '.join(PLANNERS)}.",
        )
    planner = PLANNERS[settings.planner_name]
    return replace(settings, planner=planner, respect_user_checkpoint=True)


def plan_by_names(trace: Trace, settings: Settings, make: Make) -> Plan:
    """Returns the fastest plan found with one residency for each name.

    - `trace`: traces the step under a policy.
    - `settings`: the settings for the plan of one policy (`settings_by_names`).
    - `make`: plans a traced step and compiles it.

    **Raises:** `InvalidArgumentError` if no name is inside of a `jax.checkpoint`;
    `InfeasibleBudgetError` if no policy fits.
    """
    names = trace({}).program.checkpointed_names
    if not names:
        raise InvalidArgumentError(
            'granularity="names", and no name of the step is inside of a jax.checkpoint.',
            topic=topics.NO_CHECKPOINTED_NAMES,
        )
    return _ByNames(names, trace, settings, make).plan()


@dataclass(frozen=True, eq=False)
class _ByNames:
    """The search for the fastest policy, and the plans of the policies that are compiled."""

    names: tuple[str, ...]
    trace: Trace
    settings: Settings
    make: Make

    def plan(self) -> Plan:
        """Returns the fastest plan; raises the last refusal if no policy has a plan that fits."""
        search = self._search()
        refusal: KiwiError | None = None
        made: list[Plan] = []
        for policy in itertools.islice(self._candidates(search), MOST_COMPILED):
            try:
                made.append(self.make(self.traced(policy), self.settings))
            except _REFUSALS as error:
                refusal = error
                search.refused.add(policy)
            else:
                if self.settings.verify is None:
                    break
        if not made:
            raise refusal or self._refusal(search)
        fastest = min(made, key=lambda plan: plan.step_seconds)
        return replace(fastest, notes=(*fastest.notes, self._note(search)))

    def _candidates(self, search: PolicySearch | ModelSearch) -> Iterator[Policy]:
        """Yields the policies to compile: the fastest one, again until its program fits, then the
        ones that are predicted to be nearly as fast."""
        tried: list[Policy] = []
        while len(tried) == len(search.refused) and (best := search.run()) is not None:
            tried.append(best)
            yield best
        if tried and tried[-1] not in search.refused:
            limit_seconds = WITHIN * search.known[tried[-1]].seconds
            near = [
                policy for policy, price in search.known.items() if price.seconds <= limit_seconds
            ]
            for policy in sorted(near, key=lambda policy: search.known[policy].seconds):
                if search.known[policy].fits and policy not in tried:
                    yield policy

    def _search(self) -> PolicySearch | ModelSearch:
        """Returns the search for the settings' planner. With the planner "xla", the shardings of a
        policy do not depend on the budget, so that a policy has only one price."""
        choices = [self._residencies] * len(self.names)
        budget_bytes = self.settings.memory_budget_bytes
        most = MOST_POLICIES[self.settings.effort]
        if self.settings.planner_name == "xla":
            return ModelSearch(choices, self.free, budget_bytes, most)
        return PolicySearch(choices, self.free, budget_bytes, most, tight=self.tight)

    @property
    def _residencies(self) -> tuple[str, ...]:
        """The residencies that a name may have."""
        hardware = self.settings.mesh.hardware
        facts = planned_target(self.settings.verify, hardware).facts(hardware)
        offloads = facts.offloads and bool(self.settings.host_budget_bytes)
        return (DEVICE, REMAT, OFFLOAD) if offloads else (DEVICE, REMAT)

    def traced(self, policy: Policy) -> StepToPlan:
        """Returns the step traced under a policy."""
        return self.trace(dict(zip(self.names, policy, strict=True)))

    def free(self, policy: Policy) -> Price:
        """Returns the price of a policy without a budget."""
        return self._price(policy, _UNLIMITED)

    def tight(self, policy: Policy) -> Price:
        """Returns the price of a policy within the budget."""
        return self._price(policy, self.settings.memory_budget_bytes)

    def _price(self, policy: Policy, budget_bytes: int) -> Price:
        """Returns the price of a policy under a memory limit, estimated with effort "quick"."""
        quick = {"effort": "quick", "on_progress": None}
        settings = replace(self.settings, memory_budget_bytes=budget_bytes, **quick)
        planner = planner_named(settings.planner)
        try:
            plan = planner.make(self.traced(policy), settings, is_checked=False)
        except _REFUSALS:
            return REFUSED
        estimate, host = plan.estimate, plan.host_limit_bytes
        fits = estimate.peak_bytes <= self.settings.memory_budget_bytes
        fits &= host is None or estimate.host_peak_bytes <= host
        return Price(estimate.step_seconds, estimate.peak_bytes, fits)

    def _note(self, search: PolicySearch | ModelSearch) -> Note:
        text = (
            f"{len(search.known)} of {search.count} policies of {len(self.names)} names were "
            "priced" + ("." if search.is_complete else ", the most that the effort allows.")
        )
        return Note.of(topics.POLICIES_PRICED, text)

    def _refusal(self, search: PolicySearch | ModelSearch) -> KiwiError:
        budget_bytes = self.settings.memory_budget_bytes
        tightened = search.tightened if isinstance(search, PolicySearch) else {}
        prices = (*search.known.values(), *tightened.values())
        least = int(min(price.peak_bytes for price in prices))
        return InfeasibleBudgetError(
            f"No policy of the names {', '.join(self.names)} is predicted to need as little as "
            f"{format_bytes(budget_bytes)} per device. The smallest peak found is "
            f"{format_bytes(least)}.",
            suggestion='A larger memory_budget, or granularity="operators".',
            least_peak_bytes=least,
        )
