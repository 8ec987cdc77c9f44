"""Sharding and recomputation together ("joint").

If values may be offloaded to the host, the step is first planned without offloading, with the whole
allowance. The search with offloading begins with that plan and has half of the allowance. The
faster plan of the two is the answer.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from kiwi.campaign import shares
from kiwi.campaign.attempts import WITH_OFFLOADING, WITHOUT_OFFLOADING
from kiwi.campaign.offloading import gains
from kiwi.campaign.tools import Tools
from kiwi.errors import InfeasibleBudgetError, NoPlanFoundError
from kiwi.planners.problem_planner import ProblemPlanner
from kiwi.plans.plan import Plan
from kiwi.problem.solved import Start
from kiwi.problem.step import StepToPlan


@dataclass(frozen=True)
class Joint(ProblemPlanner):
    """Chooses the sharding and the residency of each operator together."""

    recomputes: ClassVar[bool] = True
    heeds_hints: ClassVar[bool] = True
    opens_loops: ClassVar[bool] = True
    offloads: ClassVar[bool] = True

    def plan(
        self, step: StepToPlan, budget_bytes: int, tools: Tools, start: Start | None = None
    ) -> Plan:
        """Returns the plan of a step, as `Planner.plan` does. If values may be offloaded, it is the
        faster one of a plan without offloading and a plan with it."""
        asks = any(pin.hint.offload for placed in step.program.hints.values() for pin in placed)
        if start is not None or asks or not self.may_offload(tools.settings):
            return super().plan(step, budget_bytes, tools, start)
        tools = tools.with_settings(memory_budget_bytes=budget_bytes)
        # This search has the whole allowance, so that no host budget makes the answer slower.
        plain = self._without_offloading(step, tools)
        half = tools.part(shares.OFFLOADING_SHARE)
        plain_start = None if plain is None else self._begun_with(plain, step, half)
        try:
            with tools.history.within(WITH_OFFLOADING):
                offloading = super().plan(step, budget_bytes, half, plain_start)
        except (InfeasibleBudgetError, NoPlanFoundError):
            if plain is None:
                raise
            return plain
        return offloading if plain is None or gains(offloading, plain) else plain

    def _without_offloading(self, step: StepToPlan, tools: Tools) -> Plan | None:
        """Returns the plan without offloaded values; None if none is found that fits, including
        arguments on the host within the host's budget."""
        device_tools = tools.with_settings(host_budget_bytes=None)
        budget_bytes = device_tools.settings.memory_budget_bytes
        start = Start(self.formulate(step, budget_bytes, device_tools.settings))
        try:
            with tools.history.within(WITHOUT_OFFLOADING):
                plan = super().plan(step, budget_bytes, device_tools, start)
        except (InfeasibleBudgetError, NoPlanFoundError):
            return None
        plan = replace(plan, host_limit_bytes=tools.settings.host_limit_bytes)
        return plan if plan.fits else None

    def _begun_with(self, plain: Plan, step: StepToPlan, tools: Tools) -> Start | None:
        """Returns the problem with offloading, with a plan without offloading as its first
        solution; None if that plan is no solution of the problem."""
        if plain.origin is None or plain.execution.units is not step.units:
            return None
        problem = self.formulate(step, tools.settings.memory_budget_bytes, tools.settings)
        solution = plain.breakdown.choices.solution_of(problem)
        return None if solution is None else Start(problem, solution)
