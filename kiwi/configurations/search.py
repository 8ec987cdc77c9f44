"""`kiwi.search`: the best mesh, batch, microbatches, stages and devices of a step.

1. The configurations are listed: profiles, distinct meshes, batch sizes, microbatches, stages
   (`kiwi.configurations.space`).
2. Each configuration gets a bound, below which none of its plans is expected
   (`kiwi.planners.planning`).
3. The configurations are planned in the order of their bounds, until the best plan is better than
   all remaining bounds (`kiwi.configurations.best_first`).
4. The best plan is compiled. If its program does not fit, the configuration is planned again until
   a program fits. If this plan is then slower than the next best plan, that one is compiled, and so
   on.

Each number of devices and each profile has its own best configuration, and so at least one row in
the frontier.
"""

import functools
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any

from typing_extensions import Unpack

from kiwi.configurations.best_first import BestFirst, Task
from kiwi.configurations.configuration import Configuration, Outcome, Row, Stage, State
from kiwi.configurations.journal import Journal
from kiwi.configurations.result import SearchResult
from kiwi.configurations.space import Profile, Space, named_profiles
from kiwi.configurations.step_maker import StepMaker, made_step
from kiwi.configurations.tasks import Found, Request, executor_of, restored, run_task, unpacked
from kiwi.errors import InvalidArgumentError, check_known
from kiwi.messages import topics
from kiwi.options import Options, OptionTypes, shows_options
from kiwi.plans.plan import Plan
from kiwi.sizes import format_seconds

DEFAULT_EFFORT = "quick"
"""The effort of each plan, unless the caller gives another."""

OBJECTIVES = ("samples", "step_seconds", "cost")

SECONDS_PER_HOUR = 3600

OnFound = Callable[[Configuration, Outcome], None]

Score = Callable[[Configuration, float], float]
"""Returns the figure to minimise for a configuration with a step time in seconds."""


@shows_options
def search(
    make_step: Callable[..., Any] | str,
    *,
    devices: int | Sequence[int] | None = None,
    profiles: Sequence[Profile] | None = None,
    meshes: Sequence[Sequence[int]] | None = None,
    most_axes: int = 3,
    batch_sizes: Sequence[int] | None = None,
    microbatches: Sequence[int] | None = None,
    stages: Sequence[int] | None = None,
    objective: str = "samples",
    prices: Mapping[str, float] | None = None,
    plans_all: bool = False,
    jobs: int = 1,
    executor: Executor | None = None,
    resume: str | Path | None = None,
    on_found: OnFound | None = None,
    **options: Unpack[OptionTypes],
) -> SearchResult:
    """Finds the best configuration of a training step on some devices.

    - `make_step`: `make_step(batch_size, microbatches, stages)`, with any of these parameters,
      returns the function to plan and its arguments, as in `return train_step, (state, batch)`. The
      text `FILE.py:FUNCTION` names such a function. It raises `ValueError` if there is no such
      step.
    - `devices`: the number of devices. Several numbers are searched one after another.
    - `profiles`: several kinds of devices; by default the option `profile`.
    - `meshes`: the mesh shapes to search; by default all shapes with one to three axes that differ
      on the profile's links.
    - `most_axes`: the largest number of axes of these shapes. Shapes with three axes take several
      times as long to plan.
    - `batch_sizes`: the numbers of samples of one step on all devices together to search.
    - `microbatches`, `stages`: the values to search. By default, `make_step` uses its own defaults.
    - `objective`: "samples" per second, "step_seconds", or "cost" of a sample.
    - `prices`: for the objective "cost", the price of an hour of one device, by profile.
    - `plans_all`: whether every configuration is planned, whatever its bound.
    - `jobs`: the number of processes, or of tasks that `executor` gets at a time.
    - `executor`: any `concurrent.futures.Executor`, such as the executor of a Dask cluster
      (`client.get_executor()`).
    - `resume`: a folder for outcomes, from which an interrupted search continues.
    - `on_found`: called with each configuration and its outcome.
    - `options`: the options of `kiwi.jit`. The effort is "quick" by default.

    The row of a configuration that fails says why.

    **Raises:** `InvalidArgumentError` if there is nothing to search; `InvalidMeshError`,
    `InvalidSizeError` or `UnknownProfileError` for an invalid option.
    """
    started = time.monotonic()
    named = named_profiles(profiles or [options.get("profile", "h100-sxm")])
    plan_options: dict[str, Any] = {"effort": DEFAULT_EFFORT, **options}
    plan_options = {
        n: value for n, value in plan_options.items() if n not in ("profile", "mesh", "mesh_shape")
    }
    request = Request(StepMaker(make_step), named, plan_options)
    values = batch_sizes, microbatches, stages
    space = Space.of(devices, meshes, *values, most_axes=most_axes)
    configurations = space.configurations(request.maker, named, Options(**plan_options))
    score = _score_of(objective, prices, named)
    journal = Journal(
        resume, request, {configuration: k for k, configuration in enumerate(configurations)}
    )

    def note(task: Task, new: Found) -> None:
        journal.note(task, new)
        if on_found is not None:
            on_found(configurations[task[1]], new.outcome)

    most_devices = max(configuration.device_count for configuration in configurations)
    with executor_of(executor, jobs, request, most_devices) as pool:
        best_first = BestFirst(
            lambda stage, k, plan: pool.submit(run_task, request, stage, configurations[k], plan),
            lambda k, seconds: score(configurations[k], seconds),
            _stages(request),
            most_tasks=jobs,
            known=journal.known,
            on_found=note,
            plans_all=plans_all,
        )
        try:
            best = [best_first.best(numbers) for numbers in _groups(configurations)]
        finally:
            best_first.stop()
    counted = [best_first.counted[k] for k in range(len(configurations))]
    rows = rows_of(configurations, counted, best, score, journal.files)
    seconds = time.monotonic() - started
    plan_of = functools.partial(
        _plan_of, request.maker, dict(zip(configurations, counted, strict=True))
    )
    return SearchResult(rows, objective, seconds, plan_of)


def _plan_of(maker: StepMaker, counted: Mapping[Configuration, Sequence[Found]], row: Row) -> Plan:
    packed = [finished.packed for finished in counted[row.configuration] if finished.packed]
    if not packed:
        raise InvalidArgumentError(
            f"{row.configuration} has no plan: {row.why}", topic=topics.UNPLANNED_CONFIGURATION
        )
    return restored(made_step(maker, row.configuration).user, unpacked(packed[-1]))


def _stages(request: Request) -> tuple[Stage, ...]:
    is_checked = request.options.get("verify", "auto") is not None
    return (Stage.BOUND, Stage.PLAN, Stage.CHECK) if is_checked else (Stage.BOUND, Stage.PLAN)


def _groups(configurations: Sequence[Configuration]) -> list[list[int]]:
    numbers = range(len(configurations))
    groups = itertools.groupby(numbers, lambda k: group_of(configurations[k]))
    return [list(members) for _, members in groups]


def _score_of(
    objective: str, prices: Mapping[str, float] | None, profiles: Mapping[str, Profile]
) -> Score:
    check_known(objective, OBJECTIVES, "objective")
    if objective == "step_seconds":
        return lambda _, seconds: seconds
    if objective == "samples":
        return lambda configuration, seconds: seconds / configuration.samples
    missing = [name for name in profiles if name not in (prices or {})]
    if missing or prices is None:
        raise InvalidArgumentError(
            f"There is no price of {', '.join(missing)}.",
            topic=topics.NO_PRICE,
            suggestion=f"prices={{{missing[0]!r}: 2.5}}, of one device for an hour.",
        )
    return lambda configuration, seconds: (
        seconds
        / SECONDS_PER_HOUR
        * configuration.device_count
        * prices[configuration.profile]
        / configuration.samples
    )


def rows_of(
    configurations: Sequence[Configuration],
    counted: Sequence[Sequence[Found]],
    best: Iterable[int | None],
    score: Score,
    files: dict[int, str],
) -> tuple[Row, ...]:
    """Returns one row for each configuration.

    - `counted`: the outcomes of each configuration.
    - `best`: the numbers of the best configurations.
    - `files`: the names of plan files, by number.
    """
    chosen = set(best)
    rows = [
        _row(configuration, counted[number], number in chosen, score, files.get(number))
        for number, configuration in enumerate(configurations)
    ]
    winners = {
        group_of(candidate.configuration): candidate
        for candidate in rows
        if candidate.state is State.BEST
    }
    return tuple(_with_reason(row, winners.get(group_of(row.configuration))) for row in rows)


def group_of(configuration: Configuration) -> tuple[str, int]:
    """Returns the group of a configuration: its profile and number of devices. Only configurations
    of one group are compared, and each group has its own best."""
    return configuration.profile, configuration.device_count


def _row(
    configuration: Configuration,
    found: Sequence[Found],
    is_best: bool,
    score: Score,
    plan_file: str | None,
) -> Row:
    outcomes = [outcome.outcome for outcome in found]
    bounds = [outcome.step_seconds for outcome in outcomes if outcome.stage is Stage.BOUND]
    plans = [outcome for outcome in outcomes if outcome.stage is not Stage.BOUND]
    bound_seconds, seconds = next(iter(bounds), None), sum(outcome.seconds for outcome in outcomes)
    row = Row(configuration, State.REFUSED, seconds, bound_seconds)
    if outcomes[-1].error:
        return replace(row, why=outcomes[-1].error)
    if not plans:
        assert bound_seconds is not None
        return replace(row, state=State.LEFT_OUT, score=score(configuration, bound_seconds))
    final = plans[-1]
    assert final.step_seconds is not None
    return replace(
        row,
        state=State.BEST if is_best else State.PLANNED,
        step_seconds=final.step_seconds,
        peak_bytes=final.peak_bytes,
        compiled_peak_bytes=final.compiled_peak_bytes,
        gap=final.gap,
        score=score(configuration, final.step_seconds),
        plan_file=plan_file,
    )


def _with_reason(row: Row, best: Row | None) -> Row:
    """Returns the row. The row of a configuration that was left out names the plan that its bound
    was compared with."""
    if row.state is not State.LEFT_OUT or best is None or best.step_seconds is None:
        return row
    assert row.bound_seconds is not None
    why = (
        f"No plan of it is expected below {format_seconds(row.bound_seconds)} for "
        f"{row.configuration.samples} samples; the best one takes "
        f"{format_seconds(best.step_seconds)} for {best.configuration.samples}."
    )
    return replace(row, why=why)
