"""What a search asks of one configuration: a bound, a plan, a checked plan.

Tasks run in any process: they take and return plain data, and depend on nothing but their
arguments.
"""

import json
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kiwi.api import PlannedFunction
from kiwi.configurations.configuration import Configuration, Outcome, Stage
from kiwi.configurations.step_maker import StepMaker, made_step
from kiwi.errors import InfeasibleBudgetError, KiwiError, NoPlanFoundError
from kiwi.loading import UserFunction
from kiwi.options import Settings
from kiwi.planners.planning import check_settings, make_plan
from kiwi.planners.quick_bound import quick_bound
from kiwi.planners.registry import planner_named
from kiwi.plans.document import Document, document
from kiwi.plans.plan import Plan
from kiwi.problem.solved import Start
from kiwi.problem.step import StepToPlan
from kiwi.saved import SavedPlan
from kiwi.xla.compilers import prepared


@dataclass(frozen=True)
class Request:
    """What all tasks of a search share.

    - `profiles`: by name, as the option `profile` takes them.
    - `options`: other options of `kiwi.jit`.
    """

    maker: StepMaker
    profiles: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """The outcome of a task, and the plan's document, packed."""

    outcome: Outcome
    packed: bytes | None = None


def packed(content: Document) -> bytes:
    """A document as it travels between processes."""
    return zlib.compress(json.dumps(content, allow_nan=False).encode(), 1)


def unpacked(content: bytes) -> Document:
    """The inverse of `packed`."""
    return json.loads(zlib.decompress(content))


def run_task(
    request: Request, stage: Stage, configuration: Configuration, plan: bytes | None = None
) -> Found:
    """Finds out what a stage asks for; `plan`: the packed document of the stage before.

    What goes wrong for the configuration is said in the outcome.
    """
    started = time.monotonic()
    budget_bytes = None
    try:
        task = _task(request, configuration)
        budget_bytes = task.planned.settings.memory_budget_bytes
        found = _TASKS[stage](task, plan)
    except KiwiError as error:
        proven = is_proven(error, budget_bytes)
        found = Found(Outcome(stage, 0.0, error=error.what, is_proven=proven))
    seconds = time.monotonic() - started
    return replace(found, outcome=replace(found.outcome, seconds=seconds))


def is_proven(error: KiwiError, budget_bytes: int | None) -> bool:
    """Whether an error says that no plan is predicted to need as little as the budget."""
    bound = getattr(error, "least_peak_bound_bytes", None)
    return bound is not None and budget_bytes is not None and bound > budget_bytes


@dataclass(frozen=True, eq=False)
class _Task:
    planned: PlannedFunction
    user: UserFunction

    @property
    def step(self) -> StepToPlan:
        """The step, traced."""
        return self.planned.traced(*self.user.args, **self.user.kwargs)


def _task(request: Request, configuration: Configuration) -> _Task:
    made = made_step(request.maker, configuration)
    options = planning_options(request, configuration)
    return _Task(made.planned.with_options(**options), made.user)


def planning_options(request: Request, configuration: Configuration) -> dict[str, Any]:
    """The options of `kiwi.jit` under which a configuration is planned."""
    profile = request.profiles[configuration.profile]
    shape = configuration.mesh_shape
    return {**request.options, "mesh": None, "mesh_shape": shape, "profile": profile}


def _bound(task: _Task, _: bytes | None) -> Found:
    seconds = quick_bound(task.step, task.planned.settings)
    return Found(Outcome(Stage.BOUND, 0.0, seconds))


def _plan(task: _Task, _: bytes | None) -> Found:
    settings = task.planned.settings
    check_settings(settings)
    planner = planner_named(settings.planner)
    return _found(Stage.PLAN, planner.make(task.step, settings, is_checked=False))


def _check(task: _Task, plan: bytes | None) -> Found:
    """Compiles the plan, which the closed loop begins with; a plan from the start where it
    finds none from there."""
    settings = task.planned.settings
    with prepared(settings.verify, settings.mesh):
        if plan is None:  # none fits by its estimate
            return _found(Stage.CHECK, make_plan(task.step, settings))
        try:
            checked = _checked(restored(task.user, unpacked(plan)), settings)
        except (InfeasibleBudgetError, NoPlanFoundError):
            checked = make_plan(task.step, settings)
    return _found(Stage.CHECK, checked)


def _checked(plan: Plan, settings: Settings) -> Plan:
    origin = plan.origin
    if origin is None:  # made from a table that is not where it was
        return make_plan(plan.traced, settings)
    start = Start(origin.planning, plan.breakdown.solution_of(origin.planning))
    return planner_named(settings.planner).make(origin.step, settings, start)


def restored(user: UserFunction, content: Document) -> Plan:
    """The plan of a document on its function."""
    return SavedPlan(content).apply(user.function).plan(*user.args, **user.kwargs)


def _found(stage: Stage, plan: Plan) -> Found:
    compiled_bytes = None if plan.compiled is None else plan.compiled.peak_bytes
    figures = plan.estimate.step_seconds, plan.estimate.peak_bytes, compiled_bytes
    outcome = Outcome(stage, 0.0, *figures, plan.solve_result.gap)
    return Found(outcome, packed(document(plan)))


_TASKS: dict[Stage, Callable[[_Task, bytes | None], Found]] = {
    Stage.BOUND: _bound,
    Stage.PLAN: _plan,
    Stage.CHECK: _check,
}
