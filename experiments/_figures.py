"""What the experiments share: models, restartable results, plans of one mesh over budgets."""

import datetime
import json
import platform
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

import kiwi
from examples import encoder, gpt
from kiwi.api import PlannedFunction
from kiwi.errors import KiwiError
from kiwi.mesh import DeviceMesh
from kiwi.plan.baselines import RULES
from kiwi.plan.plan import Plan
from kiwi.plan.planner import Settings, Traced, formulate, make_plan
from kiwi.plan.translate import copies_that_follow
from kiwi.strategy.build import PlanningProblem

MODELS = {"encoder": (encoder, "encoder-13b-4l"), "decoder": (gpt, "gpt-13b-4l")}
"""Stacks of layers of GPT-3 13B's width, batch 16 on sequences of 1024, float32, AdamW."""
PLANNERS = ("alpa", *RULES, "joint")
NO_LIMIT_BYTES = 2**50


class Results:
    """A JSON file of rows by key, written after every row: a run goes on where it stopped."""

    def __init__(self, path: str, command: str) -> None:
        self.path = Path(path)
        self._document: dict[str, Any] = {"environment": environment(command), "rows": {}}
        if self.path.exists():
            self._document = json.loads(self.path.read_text())

    @property
    def rows(self) -> dict[str, Any]:
        """The rows that are there."""
        return self._document["rows"]

    def add(self, key: str, row: dict[str, Any]) -> None:
        """Takes a row over, on disk as well."""
        self.rows[key] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self._document, indent=1) + "\n")
        print(key, json.dumps(row), flush=True)


def environment(command: str) -> dict[str, str]:
    """What a figure depends on."""
    return {
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "jax": jax.__version__,
        "kiwi": kiwi.__version__,
        "python": platform.python_version(),
    }


def planned_step(model: str, layers: int = 4) -> tuple[PlannedFunction, tuple[Any, Any]]:
    """The training step of a model of `MODELS`, and its arguments as shapes."""
    module, size = MODELS[model]
    config = replace(module.SIZES[size], layers=layers)
    step = kiwi.jit(module.make_train_step(config), mesh_shape=(1,), donate_argnums=0, verify=None)
    return step, (module.abstract_state(config), module.abstract_batch(config))


@dataclass(frozen=True, eq=False)
class Found:
    """A plan with the problem that it solves."""

    planner: str
    plan: Plan
    planning: PlanningProblem


class MeshRun:
    """Plans of one traced step on one mesh: one problem per planner, budgets with warm starts."""

    def __init__(self, traced: Traced, mesh: DeviceMesh, least_bytes: int, seconds: float) -> None:
        self._traced = traced
        self._settings = Settings(
            mesh=mesh,
            memory_budget_bytes=least_bytes,
            planner="alpa",
            time_limit_seconds=seconds,
            verify=None,
            solver="auto",
            seed=0,
            gap=0.01,
            respect_user_checkpoint=False,
        )
        self._problems: dict[str, PlanningProblem] = {}
        self.found: list[Found] = []

    def plan(self, planner: str, budget_bytes: int) -> Plan:
        """The fastest plan found: solved, or made for another budget where that is as good.

        "joint" begins with the fastest plan that any planner has for this budget: all of them
        are solutions of its problem.

        **Raises:** as `kiwi.plan`.
        """
        settings = replace(self._settings, planner=planner, memory_budget_bytes=budget_bytes)
        try:
            planning = self.problem(planner, budget_bytes)
            start = self._start(planner, planning, budget_bytes)
            found = make_plan(self._traced, None, settings, planning=planning, warm_start=start)
            self.found.append(Found(planner, found, planning))
        except KiwiError:
            if not self.fitting(budget_bytes, planner):
                raise
        fitting = self.fitting(budget_bytes, planner)
        return fitting[0].plan if fitting else self.found[-1].plan

    def fitting(self, budget_bytes: int, planner: str | None = None) -> list[Found]:
        """Plans, of one planner or of all, whose estimated peak is in the budget, fastest first."""
        fits = [
            f
            for f in self.found
            if f.plan.estimate.peak_bytes <= budget_bytes and planner in (None, f.planner)
        ]
        return sorted(fits, key=lambda f: f.plan.estimate.step_seconds)

    def problem(self, planner: str, budget_bytes: int) -> PlanningProblem:
        """The planner's problem, with the copies of operands that the smallest budget needs.

        What two passes recompute depends on the budget, so that each budget has its own.
        """
        settings = replace(self._settings, planner=planner)
        if planner == "two-pass":
            return formulate(
                self._traced, None, replace(settings, memory_budget_bytes=budget_bytes)
            )
        if planner not in self._problems:
            self._problems[planner] = formulate(self._traced, None, settings)
        return self._problems[planner]

    def _start(
        self, planner: str, planning: PlanningProblem, budget_bytes: int
    ) -> tuple[int, ...] | None:
        for found in self.fitting(budget_bytes, None if planner == "joint" else planner):
            start = carried_over(found, planning)
            if start is not None:
                return start
        return None


def carried_over(found: Found, target: PlanningProblem) -> tuple[int, ...] | None:
    """A plan as a solution of another problem of the same step on the same mesh.

    None where the problem lacks an option of the plan: its choice of times is limited.
    """
    source, solution = found.planning, found.plan.solve_result.solution
    assert solution is not None
    first = len(source.sources)
    choices = list(solution[:first])
    for old, new in zip(source.unit_nodes, target.unit_nodes, strict=True):
        options = old.residency.options
        strategy, residency = divmod(solution[first + old.unit], len(options))
        if options[residency] not in new.residency.options:
            return None
        wanted = new.residency.options.index(options[residency])
        choices.append(strategy * len(new.residency.options) + wanted)
    return copies_that_follow(target, choices)


def outcome(plan: Plan, seconds: float) -> dict[str, Any]:
    """The figures of a plan."""
    e = plan.estimate
    return {
        "step_seconds": e.step_seconds,
        "compute_seconds": e.compute_seconds,
        "communication_seconds": e.communication_seconds,
        "resharding_seconds": e.resharding_seconds,
        "recompute_seconds": e.recompute_seconds,
        "recomputed_units": len(plan.execution.recomputed),
        "peak_bytes": e.peak_bytes,
        "gap": plan.solve_result.gap,
        "planning_seconds": seconds,
    }


def attempt(run: MeshRun, planner: str, budget_bytes: int) -> dict[str, Any]:
    """A row: the plan's figures, or why there is none."""
    started = time.monotonic()
    try:
        return outcome(run.plan(planner, budget_bytes), time.monotonic() - started)
    except KiwiError as error:
        least = getattr(error, "least_peak_bytes", None)
        return {"error": type(error).__name__, "what": error.what, "least_peak_bytes": least}
