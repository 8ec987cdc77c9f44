"""Plans of one traced step on one mesh over budgets, by all planners.

1. The baselines come first. They begin with the fastest strategies of any plan that fit under what
   they recompute.
2. "joint" then searches alone, over a grid of budgets; and further down, see `MeshRun.least`.
3. Where a baseline is still faster within the same memory, "joint" begins with its plan, which is
   a solution of a problem that offers what it recomputes (`kiwi.planners.joint`). So
   "joint" is never above a baseline.

A plan for a budget is one for every larger budget, so that no curve rises with the budget.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.paper._setup import Results
from kiwi.codec import from_plain, to_plain
from kiwi.errors import KiwiError
from kiwi.mesh import DeviceMesh
from kiwi.options import Settings
from kiwi.planners.joint import fastest_start
from kiwi.planners.product import JOINT
from kiwi.planners.registry import planner_named
from kiwi.plans.plan import Plan
from kiwi.problem.solved import Solved, Start
from kiwi.problem.step import StepToPlan
from kiwi.problem.translation import Choices, offered
from kiwi.solver.result import conclude

BASELINES = tuple(planner.name for planner in JOINT.baselines)
PLANNERS = (*BASELINES, "joint")
GRID = 0.88
"""From one budget of "joint" to the next."""
ABOVE_LEAST = 1.01
"""A budget beside the smallest peak that a search reached, relatively."""
DESCENT, MOST_DESCENTS = 0.94, 4
"""From one budget to the next while the smallest is looked for, and how often."""


class Store:
    """Plans beside their rows, on disk as well: a later sitting begins with them.

    They are for the version of Kiwi that made them; deleted, all is planned anew.
    """

    def __init__(self, results: Results) -> None:
        self._path = results.path.with_suffix(".plans.json")
        self._plans = json.loads(self._path.read_text()) if self._path.exists() else {}

    def __getitem__(self, key: str) -> Choices | None:
        return from_plain(self._plans[key], Choices) if key in self._plans else None

    def __setitem__(self, key: str, choices: Choices) -> None:
        self._plans[key] = to_plain(choices)
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
        traced: StepToPlan,
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
        self._starts: dict[str, Start | None] = {}
        self._found: list[Found] = []
        for key, row in results.rows.items():
            choices = self._store[key]
            if choices is not None and key.startswith(f"{what} "):
                self._found.append(Found(row["planner"], row, choices))

    def over(self, planner: str, budgets: Sequence[int], *, alone: bool = False) -> None:
        """Plans from the largest budget down to the first that is not met.

        A budget that a plan for a larger one meets already is passed over.
        """
        for budget in sorted(set(budgets), reverse=True):
            if any(f.row["budget_bytes"] >= budget for f in self.fitting(budget, planner)):
                continue
            if "error" in self.row(planner, budget, alone=alone):
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

    def row(self, planner: str, budget_bytes: int, *, alone: bool = False) -> dict[str, Any]:
        """The figures of the plan found for a budget, or why there is none.

        `alone`: without another plan to begin with.
        """
        key = f"{self._what} {planner} {budget_bytes}{' alone' if alone else ''}"
        if key not in self._results.rows:
            started = (time.perf_counter(), time.process_time())
            row = self._plan(key, planner, budget_bytes, alone=alone)
            row |= {
                "planning_seconds": round(time.perf_counter() - started[0], 2),
                "cpu_seconds": round(time.process_time() - started[1], 2),
            }
            self._results.add(key, row)
        return self._results.rows[key]

    def _plan(self, key: str, planner: str, budget_bytes: int, *, alone: bool) -> dict[str, Any]:
        about = {"planner": planner, "budget_bytes": budget_bytes}
        settings = replace(self._settings, planner=planner, memory_budget_bytes=budget_bytes)
        try:
            start = self._begun(settings, alone=alone)
            plan = planner_named(planner).make(self._traced, settings, start)
        except KiwiError as error:
            least = getattr(error, "least_peak_bytes", None)
            name = type(error).__name__
            return {**about, "error": name, "what": error.what, "least_peak_bytes": least}
        row = {**about, **outcome(plan)}
        assert plan.solve_result.solution is not None
        self._store[key] = choices = Choices.of(start.problem, plan.solve_result.solution)
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

    def _begun(self, settings: Settings, *, alone: bool) -> Start:
        """The planner's problem, and a solution to begin with where there is one."""
        budget = settings.memory_budget_bytes
        if settings.planner == "joint":
            known = [] if alone else [f.choices for f in self.fitting(budget)]
            begun = JOINT.start_from(known, self._traced, budget, settings)
            return begun or self._start(settings)
        start = self._start(settings)
        known = [] if alone else [f.choices for f in self._found]
        return replace(start, solution=fastest_start(start.problem, known, budget))

    def _start(self, settings: Settings) -> Start:
        """The planner's problem, with the copies of operands that the smallest budget needs, or
        that of the budget itself where each budget has its own."""
        planner, step = planner_named(settings.planner), self._traced
        if planner.name not in self._starts:
            self._starts.clear()
            budget = self._settings.memory_budget_bytes
            self._starts[planner.name] = planner.start_for(step, budget, settings)
        found = self._starts[planner.name]
        own = settings.memory_budget_bytes
        return found or Start(planner.formulate(step, own, settings))

    def baseline(self, planner: str, budgets: Sequence[int], *, least: bool = True) -> None:
        """All of `budgets`, then the smallest."""
        self.over(planner, budgets)
        if least:
            self.least(planner)

    def joint(self, budgets: Sequence[int], *, least: bool = True) -> None:
        """`budgets` and a grid between them, alone; then the smallest; then below the others.

        Without `least`, the grid ends at the smallest of `budgets`.
        """
        grid, down_to = [max(budgets)], min(f.row["peak_bytes"] for f in self._found)
        while grid[-1] > (down_to if least else min(budgets)):
            grid.append(int(GRID * grid[-1]))
        self.over("joint", [*budgets, *(g for g in grid if least or g > min(budgets))], alone=True)
        if least:
            self.least("joint")
        self._below_all()

    def _below_all(self) -> None:
        """Plans "joint" for the peak of every plan that is faster than what it has there."""
        for found in sorted(self._found, key=lambda f: -f.row["peak_bytes"]):
            peak = found.row["peak_bytes"]
            best = self.fitting(peak, "joint")
            if not best or best[0].row["step_seconds"] > found.row["step_seconds"]:
                self.row("joint", peak)

    def plan_of(self, found: Found) -> Plan:
        """A found plan as one that can be compiled: a solution of what "joint" plans."""
        budget = found.row["budget_bytes"]
        settings = replace(self._settings, planner="joint", memory_budget_bytes=budget)
        step, choices = self._traced, found.choices
        problem = JOINT.formulate(step, budget, settings, offered=offered([choices]))
        solution = choices.solution_of(problem)
        assert solution is not None
        unlimited = replace(problem.problem, limit_bytes=None)
        result = conclude(unlimited, solution, 0.0, solver="stored")
        own = planner_named(found.planner)
        return own.plan_of(step, Solved(problem, solution), result, budget)


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
