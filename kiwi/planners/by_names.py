"""Plans with one residency for each name of `checkpoint_name` (`granularity="names"`).

For each policy the step is traced with it in the place of the function's own policies
(`kiwi.hlo.checkpoint_names`), so that the planned program is the one that the framework runs under
that policy. Its shardings are decided by the planner of the settings: "joint" and "alpa" decide
them, "xla" takes those of the function. Nothing is recomputed beside the policy. The fastest policy
by the estimate is planned and compiled. If it does not fit as compiled, it is left out and the next
one follows. With a compiler, policies that are predicted to be nearly as fast are compiled too, and
the fastest as compiled is the answer: a policy that fills the memory leaves none for collectives
beside computation.
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
"""Traces the step under residencies of names."""
Make = Callable[[StepToPlan, Settings], Plan]

PLANNERS = {"joint": "alpa", "alpa": "alpa", "xla": "xla"}
"""The planners that may be asked for, and the one that plans the step of one policy."""

MOST_POLICIES = {"quick": 48, "normal": 192, "thorough": 768}
"""How many policies are priced at most, by effort."""

MOST_COMPILED = 4
"""How many policies are compiled at most."""

WITHIN = 1.03
"""A policy is compiled too if its predicted seconds are within this factor of the fastest one's.
Predictions do not separate those: one of llama2-7b was predicted 1.5 % faster than another, and
compiled 0.9 % slower."""

_UNLIMITED = 2**62
_REFUSALS = (InfeasibleBudgetError, NoPlanFoundError)


def settings_by_names(settings: Settings) -> Settings:
    """The settings of the plan of one policy; raises `InvalidArgumentError` for a planner that
    recomputes by its own rules."""
    if settings.planner_name not in PLANNERS:
        raise InvalidArgumentError(
            f'granularity="names" and planner={settings.planner_name!r} are given.',
            topic=topics.ARGUMENT,
            suggestion=f"One of the planners {', '.join(PLANNERS)}.",
        )
    planner = PLANNERS[settings.planner_name]
    return replace(settings, planner=planner, respect_user_checkpoint=True)


def plan_by_names(trace: Trace, settings: Settings, make: Make) -> Plan:
    """The fastest plan found that has one residency for each name.

    - `settings`: those of one policy. `make`: plans a traced step and compiles it.

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
    names: tuple[str, ...]
    trace: Trace
    settings: Settings
    make: Make

    def plan(self) -> Plan:
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
        """The policies to compile: the fastest, until one fits, then those nearly as fast."""
        tried: list[Policy] = []
        while len(tried) == len(search.refused) and (best := search.run()) is not None:
            tried.append(best)
            yield best
        if tried and tried[-1] not in search.refused:
            limit_seconds = WITHIN * search.known[tried[-1]].seconds
            near = [p for p, price in search.known.items() if price.seconds <= limit_seconds]
            for policy in sorted(near, key=lambda each: search.known[each].seconds):
                if search.known[policy].fits and policy not in tried:
                    yield policy

    def _search(self) -> PolicySearch | ModelSearch:
        """The search. With the planner "xla" a policy has no other shardings within a budget, and
        so one price."""
        choices = [self._residencies] * len(self.names)
        budget_bytes = self.settings.memory_budget_bytes
        most = MOST_POLICIES[self.settings.effort]
        if self.settings.planner_name == "xla":
            return ModelSearch(choices, self.free, budget_bytes, most)
        return PolicySearch(choices, self.free, self.tight, budget_bytes, most)

    @property
    def _residencies(self) -> tuple[str, ...]:
        hardware = self.settings.mesh.hardware
        facts = planned_target(self.settings.verify, hardware).facts(hardware)
        offloads = facts.offloads and bool(self.settings.host_budget_bytes)
        return (DEVICE, REMAT, OFFLOAD) if offloads else (DEVICE, REMAT)

    def traced(self, policy: Policy) -> StepToPlan:
        return self.trace(dict(zip(self.names, policy, strict=True)))

    def free(self, policy: Policy) -> Price:
        """The price of a policy without a budget."""
        return self._price(policy, _UNLIMITED)

    def tight(self, policy: Policy) -> Price:
        """The price of a policy within the budget."""
        return self._price(policy, self.settings.memory_budget_bytes)

    def _price(self, policy: Policy, budget_bytes: int) -> Price:
        own = {"effort": "quick", "on_progress": None}
        settings = replace(self.settings, memory_budget_bytes=budget_bytes, **own)
        planner = planner_named(settings.planner)
        try:
            found = planner.make(self.traced(policy), settings, is_checked=False)
        except _REFUSALS:
            return REFUSED
        estimate, host = found.estimate, found.host_limit_bytes
        fits = estimate.peak_bytes <= self.settings.memory_budget_bytes
        fits &= host is None or estimate.host_peak_bytes <= host
        return Price(estimate.step_seconds, estimate.peak_bytes, fits)

    def _note(self, search: PolicySearch | ModelSearch) -> Note:
        said = (
            f"{len(search.known)} of {search.count} policies of {len(self.names)} names were "
            "priced" + ("." if search.is_complete else ", the most that the effort allows.")
        )
        return Note.of(topics.POLICIES_PRICED, said)

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
