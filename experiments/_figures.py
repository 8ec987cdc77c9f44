"""What the experiments share: models, restartable results, plans of one mesh over budgets.

"joint" comes last at every budget. Its problem offers all residencies of the other planners' plans
(`kiwi.strategy.build.Fixed.offered`), so that these are solutions of it, and it begins with the
fastest of all plans that fit: it is never above a baseline. A plan for a budget is one for every
larger budget, so that no curve rises with the budget. The other planners begin with the fastest
strategies of any plan that fit under what they recompute.
"""

import datetime
import json
import math
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

import kiwi
from examples import encoder, gpt
from experiments.styles import STYLES
from kiwi.api import PlannedFunction
from kiwi.errors import KiwiError
from kiwi.mesh import DeviceMesh
from kiwi.plan import planners
from kiwi.plan.estimate import estimate_solution
from kiwi.plan.loop import plan_of
from kiwi.plan.plan import Plan
from kiwi.plan.planner import Settings, Traced, formulate, make_plan
from kiwi.plan.translate import Choices, offered
from kiwi.solver.evaluate import evaluate
from kiwi.solver.outcome import conclude
from kiwi.strategy.build import PlanningProblem
from kiwi.strategy.residency import Residency

MODELS = {"encoder": (encoder, "encoder-13b-4l"), "decoder": (gpt, "gpt-13b-4l")}
"""Stacks of layers of GPT-3 13B's width, batch 16 on sequences of 1024, float32, AdamW."""
PLANNERS = ("alpa", *(n for n, p in planners.PLANNERS.items() if p.rule), "joint")
NO_LIMIT_BYTES = 2**50
ABOVE_LEAST = 1.01
"""A budget beside the smallest peak that a search reached, relatively."""
DESCENT, MOST_DESCENTS = 0.94, 4
"""From one budget to the next while the smallest is looked for, and how often."""


def count_processor_seconds() -> None:
    """From now on time limits count the processor seconds of this process, not those in which
    others have the machine: a search gets as far on a busy machine as on an idle one."""
    time.monotonic = time.process_time


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


class Store:
    """Plans beside their rows, on disk as well: a later sitting begins with them.

    They are option indices, for the version of Kiwi that made them; deleted, all is planned anew.
    """

    def __init__(self, results: Results) -> None:
        self._path = results.path.with_suffix(".plans.json")
        self._plans = json.loads(self._path.read_text()) if self._path.exists() else {}

    def __getitem__(self, key: str) -> Choices | None:
        if key not in self._plans:
            return None
        sources, units = self._plans[key]
        return Choices(tuple(sources), tuple((s, Residency(at, end)) for s, at, end in units))

    def __setitem__(self, key: str, choices: Choices) -> None:
        units = [(s, r.recompute_at, r.end) for s, r in choices.units]
        self._plans[key] = (choices.sources, units)
        self._path.write_text(json.dumps(self._plans))


@dataclass(frozen=True)
class Found:
    """A plan: its row, and what it decides."""

    planner: str
    row: dict[str, Any]
    choices: Choices


class MeshRun:
    """Plans of one traced step on one mesh over budgets; what results hold already is not redone.

    `what` begins the keys of its rows.
    """

    def __init__(
        self,
        traced: Traced,
        mesh: DeviceMesh,
        least_bytes: int,
        seconds: float,
        results: Results,
        what: str,
    ) -> None:
        self._traced = traced
        self._results, self._store, self._what = results, Store(results), what
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
        self._problems: dict[object, PlanningProblem] = {}
        self._found: list[Found] = []
        for key, row in results.rows.items():
            choices = self._store[key]
            if choices is not None and key.startswith(f"{what} "):
                self._found.append(Found(row["planner"], row, choices))

    def over(self, planner: str, budgets: Sequence[int]) -> None:
        """Plans from the largest budget down to the first that is not met.

        A budget that a plan for a larger one meets already is passed over.
        """
        for budget in sorted(set(budgets), reverse=True):
            if any(f.row["budget_bytes"] >= budget for f in self.fitting(budget, planner)):
                continue
            if "error" in self.row(planner, budget):
                return

    def least(self, planner: str) -> None:
        """Looks for the smallest budget: what the search for one that none meets comes to, where
        it comes to any; then down from the smallest peak until none is found. "joint" begins at
        the smallest peak of all plans."""
        known = None if planner == "joint" else self.row(planner, 1).get("least_peak_bytes")
        if known:
            self.row(planner, int(ABOVE_LEAST * known))
        # Every plan is a solution of the problem of "joint".
        all_peaks = [f.row["peak_bytes"] for f in self._found if planner in ("joint", f.planner)]
        budget = int(DESCENT * min(all_peaks))
        for _ in range(MOST_DESCENTS):
            row = self.row(planner, budget)
            if "error" in row:
                return
            budget = int(DESCENT * min(budget, row["peak_bytes"]))

    def row(self, planner: str, budget_bytes: int) -> dict[str, Any]:
        """The figures of the plan found for a budget, or why there is none."""
        key = f"{self._what} {planner} {budget_bytes}"
        if key not in self._results.rows:
            started = (time.perf_counter(), time.process_time())
            row = self._plan(key, planner, budget_bytes)
            row |= {
                "planning_seconds": round(time.perf_counter() - started[0], 2),
                "cpu_seconds": round(time.process_time() - started[1], 2),
            }
            self._results.add(key, row)
        return self._results.rows[key]

    def _plan(self, key: str, planner: str, budget_bytes: int) -> dict[str, Any]:
        about = {"planner": planner, "budget_bytes": budget_bytes}
        settings = replace(self._settings, planner=planner, memory_budget_bytes=budget_bytes)
        try:
            planning = self.problem(planner, budget_bytes)
            start = self._start(planner, planning, budget_bytes)
            plan = make_plan(self._traced, None, settings, planning=planning, warm_start=start)
        except KiwiError as error:
            least = getattr(error, "least_peak_bytes", None)
            name = type(error).__name__
            return {**about, "error": name, "what": error.what, "least_peak_bytes": least}
        row = {**about, **outcome(plan)}
        assert plan.solve_result.solution is not None
        self._store[key] = choices = Choices.of(planning, plan.solve_result.solution)
        self._found.append(Found(planner, row, choices))
        return row

    def fitting(self, budget_bytes: int, planner: str | None = None) -> list[Found]:
        """Plans, of one planner or of all, whose estimated peak is in the budget, fastest first."""
        fits = [
            f
            for f in self._found
            if f.row["peak_bytes"] <= budget_bytes and planner in (None, f.planner)
        ]
        return sorted(fits, key=lambda f: f.row["step_seconds"])

    def problem(self, planner: str, budget_bytes: int) -> PlanningProblem:
        """The planner's problem, with the copies of operands that the smallest budget needs.

        What two passes recompute depends on the budget, so that each budget has its own; what
        "joint" is offered depends on the plans found so far.
        """
        settings = replace(self._settings, planner=planner)
        if planner == "two-pass":
            settings = replace(settings, memory_budget_bytes=budget_bytes)
            return formulate(self._traced, None, settings)
        others = [f.choices for f in self._found if f.planner not in ("alpa", "joint")]
        more = offered(others) if planner == "joint" and others else ()
        if (planner, more) not in self._problems:
            self._problems.pop((planner, ()), None)
            found = formulate(self._traced, None, settings, offered=more)
            self._problems[planner, more] = found
        return self._problems[planner, more]

    def curve(self, planner: str, budgets: Sequence[int], *, least: bool = True) -> None:
        """All of `budgets`, then the smallest; "joint" also at the peaks of the others."""
        more = [f.row["peak_bytes"] for f in self._least_found()] if planner == "joint" else []
        self.over(planner, [*budgets, *more])
        if least:
            self.least(planner)
        if planner == "joint":
            self._below_all()

    def _below_all(self) -> None:
        """Plans "joint" for the peak of every plan that is faster than what it has there."""
        for found in sorted(self._found, key=lambda f: -f.row["peak_bytes"]):
            peak = found.row["peak_bytes"]
            best = self.fitting(peak, "joint")
            if not best or best[0].row["step_seconds"] > found.row["step_seconds"]:
                self.row("joint", peak)

    def _least_found(self) -> list[Found]:
        """Of each planner but "joint" the plan with the smallest peak."""
        found: dict[str, Found] = {}
        for f in sorted(self._found, key=lambda f: -f.row["peak_bytes"]):
            found[f.planner] = f
        found.pop("joint", None)
        return list(found.values())

    def _start(
        self, planner: str, planning: PlanningProblem, budget_bytes: int
    ) -> tuple[int, ...] | None:
        """The fastest of all plans' choices, with the planner's own recomputation, that fits."""
        problem, best = replace(planning.problem, limit_bytes=budget_bytes), None
        least_seconds = math.inf
        for found in self._found:
            start = found.choices.solution_of(planning)
            if start is None:
                continue
            priced = evaluate(problem, start)
            if priced.feasible and priced.cost < least_seconds:
                packed = estimate_solution(planning, start).peak_bytes
                if packed <= budget_bytes:
                    best, least_seconds = start, priced.cost
        return best

    def plan_of(self, found: Found) -> Plan:
        """A found plan as one that can be compiled."""
        planning = self.problem(found.planner, found.row["budget_bytes"])
        solution = found.choices.solution_of(planning)
        assert solution is not None
        budget = found.row["budget_bytes"]
        settings = replace(self._settings, planner=found.planner, memory_budget_bytes=budget)
        unlimited = replace(planning.problem, limit_bytes=None)
        result = conclude(unlimited, solution, 0.0, solver="stored")
        return plan_of(self._traced, planning, result, settings)


def outcome(plan: Plan) -> dict[str, Any]:
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
    }


def points(results: Results, what: str, planner: str) -> list[tuple[int, float]]:
    """(budget bytes, step seconds) of one planner: the fastest plan of all that fit.

    Budgets are those asked for and the peaks of all plans: the curve changes there alone.
    """
    rows = [
        row for key, row in results.rows.items() if key.startswith(f"{what} ") and "planner" in row
    ]
    solved = [row for row in rows if "step_seconds" in row]
    own = [row for row in solved if row["planner"] == planner]
    budgets = {row["budget_bytes"] for row in rows} | {row["peak_bytes"] for row in solved}
    budgets = {b for b in budgets if 1 < b < NO_LIMIT_BYTES}
    found = []
    for budget in sorted(budgets):
        fits = [row["step_seconds"] for row in own if row["peak_bytes"] <= budget]
        if fits:
            found.append((budget, min(fits)))
    return found


def draw_panel(panel: Any, results: Results, what: str) -> None:
    """Each planner's time over budgets, relative to "alpa" without a limit."""
    panel.set_title(what)
    free = results.rows.get(f"{what} alpa {NO_LIMIT_BYTES}")
    if free is None:
        panel.set_axis_off()
        return
    for planner in PLANNERS:
        found = points(results, what, planner)
        if not found:
            continue
        colour, marker = STYLES[planner]
        panel.plot(
            [budget / 1e9 for budget, _ in found],
            [seconds / free["step_seconds"] for _, seconds in found],
            label=planner,
            color=colour,
            marker=marker,
            markersize=5 if planner == "joint" else 3,
            drawstyle="steps-post",
            linewidth=1.8 if planner == "joint" else 1.1,
        )
    panel.grid(alpha=0.3)
