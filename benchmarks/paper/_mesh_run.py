"""Plans of one traced step on one mesh over budgets, by all planners.

1. The baselines plan first. Each starts from the fastest known strategies that fit with its own
   recomputation.
2. "joint" then searches without a start over a grid of budgets, and down to the smallest budget;
   see `MeshRun.least`.
3. If a baseline is still faster within the same memory, "joint" starts from the baseline's plan,
   which is a solution of a problem that offers its recomputation (`kiwi.planners.joint`). "joint"
   is therefore never slower than a baseline.

A plan for a budget is also a plan for every larger budget, so no curve rises with the budget.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.paper._setup import Results
from kiwi.codec import from_plain, to_plain
from kiwi.errors import KiwiError
from kiwi.memory.residency import Residency
from kiwi.mesh import DeviceMesh
from kiwi.options import Settings
from kiwi.planners.alpa import Alpa, RuleBased
from kiwi.planners.product import JOINT
from kiwi.planners.registry import planner_named, planners
from kiwi.plans.estimate import estimate_solution
from kiwi.plans.plan import Plan
from kiwi.problem.build import PlanningProblem
from kiwi.problem.solved import Solved, Start
from kiwi.problem.step import StepToPlan
from kiwi.problem.translation import Choices
from kiwi.solver.evaluate import fitting
from kiwi.solver.result import conclude

BASELINES = tuple(
    planner.name for planner in planners().values() if isinstance(planner, Alpa | RuleBased)
)
"""The planners of the paper that shard, with recomputation by a rule or without it."""
PLANNERS = (*BASELINES, "joint")
GRID = 0.88
"""The factor from one budget of "joint" to the next."""
ABOVE_LEAST = 1.01
"""The factor from the smallest peak that a search reached to the budget that is tried."""
DESCENT, MOST_DESCENTS = 0.94, 4
"""The factor from one budget to the next in the search for the smallest budget, and the number of
steps of that search."""


class Store:
    """The plans of recorded rows, on disk, so that a later run starts from them.

    Plans hold for the version of Kiwi that made them. If the file is deleted, everything is planned
    anew.
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
    """A plan: its row, and its decisions."""

    planner: str
    row: dict[str, Any]
    choices: Choices


class MeshRun:
    """Plans of one traced step on one mesh over budgets. Recorded plans are not repeated.

    `what` is the beginning of the keys of its rows.
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
        """Plans from the largest budget down to the first one that is not met.

        Skips a budget that a plan for a larger budget already meets.
        """
        for budget in sorted(set(budgets), reverse=True):
            if any(f.row["budget_bytes"] >= budget for f in self.fitting(budget, planner)):
                continue
            if "error" in self.row(planner, budget, alone=alone):
                return

    def least(self, planner: str) -> None:
        """Searches the smallest budget. First plans for the least peak that a refused budget
        reports, if it reports one. Then lowers the budget from the smallest peak until no plan is
        found. "joint" starts from the smallest peak of all plans."""
        least_bytes = None if planner == "joint" else self.row(planner, 1).get("least_peak_bytes")
        if least_bytes:
            self.row(planner, int(ABOVE_LEAST * least_bytes))
        # The plans of all planners are solutions of the problem of "joint".
        all_peaks = [f.row["peak_bytes"] for f in self._found if planner in ("joint", f.planner)]
        budget = int(DESCENT * min(all_peaks))
        for _ in range(MOST_DESCENTS):
            row = self.row(planner, budget)
            if "error" in row:
                return
            budget = int(DESCENT * min(budget, row["peak_bytes"]))

    def row(self, planner: str, budget_bytes: int, *, alone: bool = False) -> dict[str, Any]:
        """Returns the figures of the plan for a budget, or the error if there is none.

        `alone`: whether the search starts without another plan.
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
        """Returns the plans of one planner or of all whose estimated peak fits the budget, fastest
        first."""
        fits = [
            candidate
            for candidate in self._found
            if candidate.row["peak_bytes"] <= budget_bytes and planner in (None, candidate.planner)
        ]
        return sorted(fits, key=lambda candidate: candidate.row["step_seconds"])

    def _begun(self, settings: Settings, *, alone: bool) -> Start:
        """Returns the planner's problem, with a solution to start from if there is one."""
        budget = settings.memory_budget_bytes
        if settings.planner == "joint":
            known = [] if alone else [f.choices for f in self.fitting(budget)]
            start_of_joint = start_from(known, self._traced, budget, settings)
            return start_of_joint or self._start(settings)
        start = self._start(settings)
        known = [] if alone else [f.choices for f in self._found]
        return replace(start, solution=fastest_start(start.problem, known, budget))

    def _start(self, settings: Settings) -> Start:
        """Returns the planner's problem with the copies of operands that the smallest budget
        needs. If the planner has a separate problem for each budget, returns the problem of this
        budget."""
        planner, step = planner_named(settings.planner), self._traced
        if planner.name not in self._starts:
            self._starts.clear()
            budget = self._settings.memory_budget_bytes
            self._starts[planner.name] = planner.start_for(step, budget, settings)
        start = self._starts[planner.name]
        budget_bytes = settings.memory_budget_bytes
        return start or Start(planner.formulate(step, budget_bytes, settings))

    def baseline(self, planner: str, budgets: Sequence[int], *, least: bool = True) -> None:
        """Plans for all of `budgets`, then for the smallest budget."""
        self.over(planner, budgets)
        if least:
            self.least(planner)

    def joint(self, budgets: Sequence[int], *, least: bool = True) -> None:
        """Plans "joint" without a start for `budgets` and a grid between them, then for the
        smallest budget, then from the plans of other planners.

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
        """Plans "joint" for the peak of every plan that is faster than the plans of "joint" at that
        peak."""
        for found in sorted(self._found, key=lambda f: -f.row["peak_bytes"]):
            peak = found.row["peak_bytes"]
            best = self.fitting(peak, "joint")
            if not best or best[0].row["step_seconds"] > found.row["step_seconds"]:
                self.row("joint", peak)

    def plan_of(self, found: Found) -> Plan:
        """Returns a found plan as one that can be compiled: as a solution of the problem of
        "joint"."""
        budget = found.row["budget_bytes"]
        settings = replace(self._settings, planner="joint", memory_budget_bytes=budget)
        step, choices = self._traced, found.choices
        problem = JOINT.formulate(step, budget, settings, offered=offered([choices]))
        solution = choices.solution_of(problem)
        assert solution is not None
        unlimited = replace(problem.problem, limit_bytes=None)
        result = conclude(unlimited, solution, 0.0, solver="stored")
        planner = planner_named(found.planner)
        return planner.plan_of(step, Solved(problem, solution), result, budget)


def start_from(
    choices: Sequence[Choices], step: StepToPlan, budget_bytes: int, settings: Settings
) -> Start | None:
    """Returns a problem of "joint" that has the first fitting plan as a solution, with that
    solution; None if no plan fits.

    Only that plan's residencies are offered in addition: short searches end worse with more
    options.

    - `choices`: the choices of the plans, the fastest plan first.
    """
    for plan in choices:
        problem = JOINT.formulate(step, budget_bytes, settings, offered=offered([plan]))
        solution = fastest_start(problem, [plan], budget_bytes)
        if solution is not None:
            return Start(problem, solution)
    return None


def fastest_start(
    problem: PlanningProblem, choices: Sequence[Choices], budget_bytes: int
) -> tuple[int, ...] | None:
    """Returns the fastest plan that fits, as a solution of a problem; None if none fits.

    - `choices`: the choices of the plans. Plans that are no solutions of the problem are ignored.
    """
    limited = replace(problem.problem, limit_bytes=budget_bytes)
    starts = [start for plan in choices if (start := plan.solution_of(problem)) is not None]
    for _, start in fitting(limited, starts):
        if estimate_solution(Solved(problem, start)).peak_bytes <= budget_bytes:
            return start
    return None


def offered(choices: Sequence[Choices]) -> tuple[tuple[Residency, ...], ...]:
    """Returns, for each unit, the residencies that several plans choose, for `Fixed.offered`."""
    by_unit = zip(*(plan_choices.units for plan_choices in choices), strict=True)
    return tuple(
        tuple(dict.fromkeys(unit_choice.residency for unit_choice in unit_choices))
        for unit_choices in by_unit
    )


def outcome(plan: Plan) -> dict[str, Any]:
    """Returns the figures of a plan."""
    estimate = plan.estimate
    return {
        "step_seconds": estimate.step_seconds,
        "compute_seconds": estimate.compute_seconds,
        "communication_seconds": estimate.communication_seconds,
        "resharding_seconds": estimate.resharding_seconds,
        "recompute_seconds": estimate.recompute_seconds,
        "recomputed_units": len(plan.execution.recomputed),
        "peak_bytes": estimate.peak_bytes,
        "gap": plan.solve_result.gap,
    }
