"""The tasks of a search for one configuration: a bound, a plan, a checked plan.

A task takes and returns plain data, and depends only on its arguments. So it runs in any process:
in this process, in another one, or where the caller's executor runs it.
"""

import contextlib
import json
import multiprocessing
import pickle
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from kiwi import loading
from kiwi.configurations.configuration import Configuration, Outcome, Stage
from kiwi.configurations.step_maker import StepMaker, StepToSearch, made_step
from kiwi.errors import InfeasibleBudgetError, InvalidArgumentError, KiwiError, NoPlanFoundError
from kiwi.loading import UserFunction
from kiwi.messages import topics
from kiwi.options import Settings
from kiwi.planners.planning import check_settings, make_plan, quick_bound
from kiwi.planners.registry import planner_named
from kiwi.plans.document import Document, document
from kiwi.plans.plan import Plan
from kiwi.problem.solved import Start
from kiwi.quiet import start_jax
from kiwi.saved import SavedPlan
from kiwi.xla.compilers import prepared


@dataclass(frozen=True)
class Request:
    """The data that all tasks of a search share.

    - `maker`: the user's `make_step`.
    - `profiles`: the profiles by name, as the option `profile` takes them.
    - `options`: the other options of `kiwi.jit`.
    """

    maker: StepMaker
    profiles: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """The outcome of a task, and the packed document of its plan, if it has one."""

    outcome: Outcome
    packed: bytes | None = None


def packed(content: Document) -> bytes:
    """Returns a document in compressed form, to be sent between processes."""
    return zlib.compress(json.dumps(content, allow_nan=False).encode(), 1)


def unpacked(content: bytes) -> Document:
    """Returns the document that `packed` compressed."""
    return json.loads(zlib.decompress(content))


def run_task(
    request: Request, stage: Stage, configuration: Configuration, plan: bytes | None = None
) -> Found:
    """Runs one stage of a configuration and returns its outcome. A `KiwiError` becomes part of the
    outcome.

    - `plan`: the packed document of the plan of the stage before.
    """
    started = time.monotonic()
    budget_bytes = None
    try:
        task = made_step(request.maker, configuration).with_options(
            **{
                **request.options,
                "mesh": None,
                "mesh_shape": configuration.mesh_shape,
                "profile": request.profiles[configuration.profile],
            }
        )
        budget_bytes = task.planned.settings.memory_budget_bytes
        with loading.faults_explained():
            result = _TASKS[stage](task, plan)
    except KiwiError as error:
        bound = getattr(error, "least_peak_bound_bytes", None)
        is_proven = bound is not None and budget_bytes is not None and bound > budget_bytes
        result = Found(Outcome(stage, 0.0, error=error.what, is_proven=is_proven))
    seconds = time.monotonic() - started
    return replace(result, outcome=replace(result.outcome, seconds=seconds))


def _bound(task: StepToSearch, _: bytes | None) -> Found:
    seconds = quick_bound(task.traced, task.planned.settings)
    return Found(Outcome(Stage.BOUND, 0.0, seconds))


def _plan(task: StepToSearch, _: bytes | None) -> Found:
    settings = task.planned.settings
    check_settings(settings)
    planner = planner_named(settings.planner)
    return _found(Stage.PLAN, planner.make(task.traced, settings, is_checked=False))


def _check(task: StepToSearch, plan: bytes | None) -> Found:
    """Checks a plan: the closed loop starts from the plan. If it finds none from there, the step is
    planned again from the beginning."""
    settings = task.planned.settings
    with prepared(settings.verify, settings.mesh):
        if plan is None:  # No plan fits by its estimate.
            return _found(Stage.CHECK, make_plan(task.traced, settings))
        try:
            checked = _checked(restored(task.user, unpacked(plan)), settings)
        except (InfeasibleBudgetError, NoPlanFoundError):
            checked = make_plan(task.traced, settings)
    return _found(Stage.CHECK, checked)


def _checked(plan: Plan, settings: Settings) -> Plan:
    origin = plan.origin
    if origin is None:  # The profile table of the plan is no longer at its place.
        return make_plan(plan.traced, settings)
    start = Start(origin.planning, plan.breakdown.solution_of(origin.planning))
    return planner_named(settings.planner).make(origin.step, settings, start)


def restored(user: UserFunction, content: Document) -> Plan:
    """Returns the plan of a document, restored on its function."""
    return SavedPlan(content).apply(user.function).plan(*user.args, **user.kwargs)


def _found(stage: Stage, plan: Plan) -> Found:
    compiled_bytes = None if plan.compiled is None else plan.compiled.peak_bytes
    figures = plan.estimate.step_seconds, plan.estimate.peak_bytes, compiled_bytes
    outcome = Outcome(stage, 0.0, *figures, plan.solve_result.gap)
    return Found(outcome, packed(document(plan)))


_TASKS: dict[Stage, Callable[[StepToSearch, bytes | None], Found]] = {
    Stage.BOUND: _bound,
    Stage.PLAN: _plan,
    Stage.CHECK: _check,
}


class InThisProcess(Executor):
    """An executor that runs a task at once, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Runs the task and returns a finished future."""
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@contextlib.contextmanager
def executor_of(given: Executor | None, jobs: int, needed: Any, devices: int) -> Iterator[Executor]:
    """A context manager with the given executor, or with a new one that ends with the block.

    - `given`: the caller's executor, if any.
    - `jobs`: the number of processes of a new executor.
    - `needed`: the objects that are sent to processes.
    - `devices`: the number of virtual CPU devices of each process, with which XLA:CPU's compile
      check is cheap.

    **Raises:** `InvalidArgumentError` if `jobs` is not positive, or `needed` cannot be sent.
    """
    if jobs < 1:
        raise InvalidArgumentError(f"jobs={jobs} is not positive.", topic=topics.OUT_OF_RANGE)
    if given is not None:
        yield given
        return
    if jobs == 1:
        yield InThisProcess()
        return
    _check_can_be_sent(needed)
    # A forked process would inherit JAX's threads and might hang.
    pool = ProcessPoolExecutor(
        jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=start_jax,
        initargs=(devices,),
    )
    try:
        yield pool
    finally:
        # Do not wait for tasks that were started ahead.
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(cancel_futures=True)


def _check_can_be_sent(needed: Any) -> None:
    try:
        pickle.dumps(needed)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InvalidArgumentError(
            f"make_step or an option cannot be sent to other processes: {error}.",
            topic=topics.NOT_SENDABLE,
        ) from error
