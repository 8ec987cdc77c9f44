"""The plans of one function for several meshes and budgets.

Meshes are planned in parallel processes. The budgets of one mesh are planned one after another in
one process, on one formulated problem:

1. The largest budget comes first. Its plan and its bound serve every budget that the plan fits: a
   bound under a loose budget holds under a tighter budget.
2. The other budgets follow from the smallest upwards. A plan for a tighter budget is a solution for
   a looser budget. The search for the looser budget starts from this plan, or ends at once if the
   plan is within the gap of the bound from step 1.
3. A search stops within its gap. So at the end every budget takes the fastest of all plans that fit
   it. A larger budget is then never slower, and a smaller budget never needs more memory.
"""

import functools
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import Any

from typing_extensions import Unpack

from kiwi import loading
from kiwi.api import PlannedFunction
from kiwi.errors import BudgetNotMetError, InvalidArgumentError, KiwiError
from kiwi.messages import topics
from kiwi.options import OptionTypes, Settings
from kiwi.planners.registry import planner_named
from kiwi.plans.document import Document, document
from kiwi.plans.plan import Plan
from kiwi.problem.solved import Start
from kiwi.problem.step import StepToPlan
from kiwi.quiet import start_jax
from kiwi.sizes import parse_size
from kiwi.solver.result import relative_gap
from kiwi.xla.compilers import prepared

DEFAULT_EFFORT = "quick"
"""The effort of each plan, unless the caller gives another."""

HEADROOM = 0.985
"""The search uses only this fraction of a budget. The rest is left for copies of operands that are
too small to be modelled one by one, but count in a plan's estimate. Bounds and gaps hold under this
smaller limit."""


@dataclass(frozen=True)
class SweepPoint:
    """The result for one mesh and budget.

    - `seconds`: the wall time of planning.
    - `how`: the origin of the plan: "solved", "warm start", "same as a larger budget" or "same as a
      smaller budget".
    - `error`: why there is no plan.
    - `document`: the plan's document; None without a plan.
    """

    mesh_shape: tuple[int, ...]
    memory_budget_bytes: int
    seconds: float
    how: str = ""
    error: str = ""
    document: Document | None = None

    @property
    def step_seconds(self) -> float | None:
        """The estimated step time; None without a plan."""
        return None if self.document is None else self.document["estimate"]["step_seconds"]

    @property
    def peak_bytes(self) -> int | None:
        """The estimated peak; None without a plan."""
        return None if self.document is None else self.document["estimate"]["peak_bytes"]

    @property
    def compiled_peak_bytes(self) -> int | None:
        """The compiled peak; None if the plan was not compiled."""
        checks = None if self.document is None else self.document["checks"]
        return None if checks is None else checks["peak_bytes"]

    @property
    def gap(self) -> float | None:
        """The proven relative distance to the best plan; None without a plan or bound."""
        return None if self.document is None else self.document["bounds"]["gap"]

    @property
    def device_count(self) -> int:
        """The number of devices of the mesh."""
        return math.prod(self.mesh_shape)


@dataclass(frozen=True)
class Sweep:
    """All points, ordered by mesh and budget, and the wall time of the sweep."""

    points: tuple[SweepPoint, ...]
    seconds: float

    @property
    def pareto(self) -> tuple[SweepPoint, ...]:
        """The points that no other point beats in devices, peak and step time together."""
        planned = [point for point in self.points if point.document is not None]
        return tuple(
            point for point in planned if not any(_beats(rival, point) for rival in planned)
        )

    @property
    def best(self) -> SweepPoint | None:
        """The point with the fastest plan; None if no point has a plan."""
        planned = [point for point in self.points if point.step_seconds is not None]
        return min(planned, key=lambda point: (point.step_seconds, point.peak_bytes), default=None)


def _beats(one: SweepPoint, other: SweepPoint) -> bool:
    """Returns whether `one` is better than `other` in devices, peak or time, and worse in none.
    Between equal points, the first in order is the better one."""
    figures, other_figures = (
        (point.device_count, point.peak_bytes, point.step_seconds) for point in (one, other)
    )
    if figures == other_figures:
        return _order(one) < _order(other)
    pairs = zip(figures, other_figures, strict=True)
    return all(figure <= other for figure, other in pairs)  # type: ignore[operator]


def _order(point: SweepPoint) -> tuple[tuple[int, ...], int]:
    return point.mesh_shape, point.memory_budget_bytes


def sweep(
    function: str,
    mesh_shapes: Sequence[Sequence[int]],
    memory_budgets: Sequence[int | str],
    *,
    args: str = "make_args",
    jobs: int = 2,
    on_point: Callable[[SweepPoint], None] | None = None,
    **options: Unpack[OptionTypes],
) -> Sweep:
    """Plans a function for all meshes and budgets.

    - `function`: the text `FILE.py:FUNCTION`.
    - `args`: the name of the file's function that makes the arguments.
    - `jobs`: the number of processes.
    - `on_point`: called with each point.
    - `options`: the options of `kiwi.jit`. Plans are compiled only with `verify`.

    **Raises:** `InvalidArgumentError` or `InvalidSizeError` for invalid parameters. The error of a
    single mesh and budget is stated in its point.
    """
    if jobs < 1:
        raise InvalidArgumentError(f"jobs={jobs} is not positive.", topic=topics.OUT_OF_RANGE)
    started = time.monotonic()
    budgets = sorted({parse_size(budget) for budget in memory_budgets})
    by_effort = sorted(
        {
            (sum(n > 1 for n in mesh_shape), math.prod(mesh_shape), *mesh_shape)
            for mesh_shape in mesh_shapes
        }
    )
    # The meshes that take longest to plan come first.
    shapes = [tuple(shape) for _, _, *shape in reversed(by_effort)]
    plan_options = {"verify": None, "effort": DEFAULT_EFFORT, **options}
    all_points: list[SweepPoint] = []
    plan_mesh = functools.partial(_plan_mesh, function, args, budgets, plan_options)
    for points in _planned_meshes(plan_mesh, shapes, jobs):
        all_points += points
        if on_point is not None:
            for point in points:
                on_point(point)
    all_points.sort(
        key=lambda swept: (swept.device_count, swept.mesh_shape, swept.memory_budget_bytes)
    )
    return Sweep(tuple(all_points), time.monotonic() - started)


def _planned_meshes(
    plan_mesh: Callable[[tuple[int, ...]], list[SweepPoint]],
    shapes: Sequence[tuple[int, ...]],
    jobs: int,
) -> Iterator[list[SweepPoint]]:
    # A forked process would inherit JAX's threads and might hang.
    context = multiprocessing.get_context("spawn")
    most = max(map(math.prod, shapes))
    with ProcessPoolExecutor(
        min(jobs, len(shapes)), mp_context=context, initializer=start_jax, initargs=(most,)
    ) as pool:
        waiting = [pool.submit(plan_mesh, shape) for shape in shapes]
        try:
            for done in as_completed(waiting):
                yield done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _plan_mesh(
    function: str, args: str, budgets: list[int], options: dict[str, Any], shape: tuple[int, ...]
) -> list[SweepPoint]:
    """Loads the file and plans one mesh. It runs in a process of its own."""
    user = loading.load(function, args)
    try:
        chosen = replace(user.options, mesh=None, mesh_shape=shape, **options)
        planned = PlannedFunction(user.function, chosen)
        with loading.faults_explained():
            return sweep_budgets(planned, budgets, user.args, user.kwargs)
    except KiwiError as error:
        return [SweepPoint(shape, budget, 0.0, error=error.what) for budget in budgets]


def sweep_budgets(
    planned: PlannedFunction, budgets: Sequence[int], args: Sequence[Any], kwargs: dict[str, Any]
) -> list[SweepPoint]:
    """Plans one mesh for several budgets, on one problem, with warm starts. Returns the points in
    the order of their budgets."""
    step, settings = planned.traced(*args, **kwargs), planned.settings
    loose = max(budgets)
    start = planner_named(settings.planner).start_for(step, min(budgets), settings)
    chain = _Chain(step, start, settings)
    with prepared(settings.verify, settings.mesh):
        points = {loose: chain.plan(loose)}
        for budget in sorted(budgets):
            if budget != loose:
                points[budget] = chain.plan(budget)
    return [chain.fastest(points[budget]) for budget in sorted(budgets)]


class _Chain:
    """Plans the budgets of one mesh in order, and keeps all results that the next budget can
    use."""

    def __init__(self, step: StepToPlan, start: Start | None, settings: Settings) -> None:
        self._step, self._start, self._settings = step, start, settings
        self._free: Plan | None = None
        self._tighter: Plan | None = None
        self._plans: list[Plan] = []

    def plan(self, budget: int) -> SweepPoint:
        """Plans one budget and returns its point. The largest budget must come first, then the
        others upwards."""
        started = time.monotonic()
        shape = self._settings.mesh.shape
        try:
            new_plan, how = self._known(budget) or self._solved(budget)
        except KiwiError as error:
            if isinstance(error, BudgetNotMetError):
                self._plans.append(error.plan)
            return SweepPoint(shape, budget, time.monotonic() - started, error=error.what)
        self._plans.append(new_plan)
        if self._free is None:
            self._free = new_plan
        else:
            self._tighter = new_plan
        seconds = time.monotonic() - started
        return SweepPoint(shape, budget, seconds, how, document=document(new_plan))

    def fastest(self, point: SweepPoint) -> SweepPoint:
        """The point with the fastest of all plans that fit its budget. Between equally fast plans,
        the one with the smallest peak counts."""
        budget = point.memory_budget_bytes
        fits = [candidate for candidate in self._plans if candidate.peak_bytes <= budget]
        if not fits:
            return point
        best = min(
            fits, key=lambda candidate: (candidate.estimate.step_seconds, candidate.peak_bytes)
        )
        if point.document is not None and best.memory_budget_bytes == budget:
            return point
        bound = self._free.solve_result.bound if self._free else best.solve_result.bound
        if point.document is not None:
            bound = max(bound, point.document["bounds"]["bound_seconds"])
        how = "larger" if best.memory_budget_bytes > budget else "smaller"
        fitting = _proven(best, budget, bound)
        return replace(point, how=f"same as a {how} budget", error="", document=document(fitting))

    def _known(self, budget: int) -> tuple[Plan, str] | None:
        free, tighter = self._free, self._tighter
        if free is None:
            return None
        if free.peak_bytes <= budget:
            return replace(free, memory_budget_bytes=budget), "same as a larger budget"
        if tighter is None or tighter.solve_result.objective is None:
            return None
        gap = relative_gap(tighter.solve_result.objective, free.solve_result.bound)
        if gap > self._settings.gap:
            return None
        # For a looser budget, only the bound of the loosest budget is proven.
        return _proven(tighter, budget, free.solve_result.bound), "same as a smaller budget"

    def _solved(self, budget: int) -> tuple[Plan, str]:
        start, is_warm = self._start, self._start is not None and self._tighter is not None
        if start is not None and self._tighter is not None:
            start = replace(start, solution=self._tighter.solve_result.solution)
        settings = replace(self._settings, memory_budget_bytes=int(HEADROOM * budget))
        new_plan = planner_named(settings.planner).make(self._step, settings, start)
        bounds = [
            proven_plan.solve_result.bound
            for proven_plan in (new_plan, self._free)
            if proven_plan is not None
        ]
        return _proven(new_plan, budget, max(bounds)), "warm start" if is_warm else "solved"


def _proven(plan: Plan, budget: int, bound: float) -> Plan:
    """Returns the plan as a plan for another budget, with the bound that is proven for that
    budget."""
    result = replace(plan.solve_result, bound=bound)
    return replace(plan, memory_budget_bytes=budget, solve_result=result)


_FIGURES = (
    *("device_count", "memory_budget_bytes", "step_seconds", "peak_bytes"),
    *("compiled_peak_bytes", "gap", "how", "error", "seconds"),
)


def sweep_json(found: Sweep) -> dict[str, Any]:
    """Returns the table of a sweep as plain data, without the plans themselves."""
    front = {_order(point) for point in found.pareto}
    return {
        "seconds": found.seconds,
        "points": [
            {
                "mesh_shape": list(point.mesh_shape),
                **{name: getattr(point, name) for name in _FIGURES},
                "pareto": _order(point) in front,
            }
            for point in found.points
        ],
    }
