"""Runs the missing cases; see `benchmarks.starts`."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
from absl import app, flags

import kiwi
from benchmarks.provenance import commit
from benchmarks.starts.drawn import Drawn, drawn
from kiwi.campaign.obvious_starts import obvious_starts
from kiwi.campaign.tools import Tools
from kiwi.planners.registry import planner_named
from kiwi.plans.estimate import Estimate, estimate_solution
from kiwi.problem.solved import Solved
from kiwi.problem.step import StepToPlan

_FOLDER = Path(__file__).parent
_CASES = flags.DEFINE_integer("cases", 200, "How many.")
_OUT = flags.DEFINE_string("out", str(_FOLDER), "Folder of the results.")
OTHERS = (
    "alpa",
    "alpa+dots",
    "alpa+megatron",
    "two-pass",
    "two-stage",
    "kiwi-full",
    "kiwi-reduced",
)
_OTHERS_EVERY = 8
_FREE = 2**45
WORK_SHARE = 0.1
"""The share of the work of the effort "quick". A search that does less work misses more."""

SAME = 1e-9
"""The relative difference of times that sum the same terms in another order."""

_FORGET_EVERY = 20
Rows = dict[str, Any]


@dataclass(frozen=True)
class Compared:
    """A plan beside the starts.

    - `starts_ms`: the times of the starts within the budget.
    - `others_ms`: the times of other planners' plans, by planner.
    - `work`: the work of the search, see `kiwi.solver.effort`.
    """

    name: str
    mesh_shape: tuple[int, ...]
    profile: str
    gap: float
    budget_bytes: int
    budget_share: float
    operators: int
    step_ms: float | None
    starts_ms: tuple[float, ...]
    others_ms: Mapping[str, float]
    work: int
    error: str = ""


def main(_: list[str]) -> None:
    """Runs the missing cases, and writes the table."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    path = Path(_OUT.value) / "results.json"
    rows: Rows = json.loads(path.read_text()) if path.exists() else {}
    for seed in range(_CASES.value):
        if str(seed) in rows:
            continue
        compared = _compared(drawn(seed), asks_others=seed % _OTHERS_EVERY == 0)
        row = {"commit": commit(), **asdict(compared)}
        rows[str(seed)] = row
        path.write_text(json.dumps(rows, indent=1) + "\n")
        print(seed, "WORSE" if is_worse(row) else "", row["name"], row["step_ms"], flush=True)
        if seed % _FORGET_EVERY == 0:
            jax.clear_caches()
    (path.parent / "results.md").write_text("\n".join(table(rows)) + "\n")


def _compared(case: Drawn, *, asks_others: bool) -> Compared:
    planned = kiwi.jit(
        case.step,
        mesh_shape=case.mesh_shape,
        profile=case.profile,
        gap=case.gap,
        memory_budget=_FREE,
        donate_argnums=0,
        verify=None,
        effort="quick",
        time_limit_seconds=1e5,
    )
    step = planned.traced(*case.arguments)
    problem = planner_named("joint").formulate(step, _FREE, planned.settings)
    starts = [estimate_solution(Solved(problem, start)) for start in obvious_starts(problem)]
    budget_bytes = _budget_bytes(starts, case.budget_share)
    # Under a budget the problem models more copies of operands than without one.
    problem = planner_named("joint").formulate(step, budget_bytes, planned.settings)
    starts = [estimate_solution(Solved(problem, start)) for start in obvious_starts(problem)]
    tools = Tools.of(planned.with_options(memory_budget=budget_bytes).settings).part(WORK_SHARE)
    fitting = tuple(1e3 * s.step_seconds for s in starts if s.peak_bytes <= budget_bytes)
    case_fields = (
        case.name,
        case.mesh_shape,
        case.profile,
        case.gap,
        budget_bytes,
        case.budget_share,
    )
    operators = len(step.units.units)
    try:
        plan = planner_named("joint").plan(step, budget_bytes, tools)
    except kiwi.errors.KiwiError as error:
        return Compared(*case_fields, operators, None, fitting, {}, 0, error.what)
    others = _others(step, budget_bytes, tools) if asks_others and case.is_small else {}
    plan_ms = 1e3 * plan.estimate.step_seconds
    return Compared(*case_fields, operators, plan_ms, fitting, others, plan.solve_result.work)


def _budget_bytes(starts: list[Estimate], share: float) -> int:
    least = min(start.peak_bytes for start in starts)
    free = min(starts, key=lambda start: start.step_seconds).peak_bytes
    return int(least + share * (free - least))


def _others(step: StepToPlan, budget_bytes: int, tools: Tools) -> Mapping[str, float]:
    milliseconds_by_planner = {}
    for name in OTHERS:
        try:
            plan = planner_named(name).plan(step, budget_bytes, tools)
        except kiwi.errors.KiwiError:
            continue  # The planner has no plan for the budget.
        if plan.fits:
            milliseconds_by_planner[name] = 1e3 * plan.estimate.step_seconds
    return milliseconds_by_planner


def is_worse(row: Rows) -> bool:
    """Returns whether there is no plan, or the plan is slower than a start that fits."""
    if not row["starts_ms"]:
        return False
    return row["step_ms"] is None or row["step_ms"] > (1 + SAME) * min(row["starts_ms"])


def faster_planners(row: Rows) -> dict[str, float]:
    """Returns, by planner, how much slower the plan is than that planner's plan, if by more than
    the gap that the search was asked for."""
    if row["step_ms"] is None:
        return dict.fromkeys(row["others_ms"], float("inf"))
    ratios = {name: row["step_ms"] / other_ms - 1 for name, other_ms in row["others_ms"].items()}
    return {name: ratio for name, ratio in ratios.items() if ratio > row["gap"]}


def table(rows: Rows) -> Iterator[str]:
    """Yields the lines of the page: counts, and the plans that are slower."""
    worse = {seed: row for seed, row in rows.items() if is_worse(row)}
    slower = {seed: row for seed, row in rows.items() if faster_planners(row)}
    planned = [row for row in rows.values() if row["step_ms"] is not None and row["starts_ms"]]
    gains = sorted(1 - row["step_ms"] / min(row["starts_ms"]) for row in planned)
    plan_counts = [len(row["others_ms"]) for row in rows.values() if row["others_ms"]]
    yield "# Plans beside what anyone would try first"
    yield ""
    yield f"commits: {', '.join(sorted({str(row['commit']) for row in rows.values()}))}  "
    yield "command: python -m benchmarks.starts"
    yield ""
    yield f"- {len(rows)} steps of {len({row['name'] for row in rows.values()})} kinds; "
    yield f"  {len(worse)} plans are slower than a start that fits."
    if gains:
        yield f"- The step is {gains[len(gains) // 2]:.1%} faster than the best start in the"
        yield f"  middle, {gains[-1]:.0%} at most."
    yield (
        f"- {len(plan_counts)} steps with {sum(plan_counts)} plans of other planners: "
        f"{len(slower)} times one"
    )
    yield "  of these is faster by more than the gap that the search was to reach."
    for what, selected in (("slower than a start", worse), ("slower than another planner", slower)):
        if selected:
            yield from ("", f"## {what.capitalize()}", "")
            yield "| seed | step | mesh | profile | MiB | plan ms | start ms | faster planners |"
            yield "| ---: | --- | --- | --- | ---: | ---: | ---: | --- |"
            yield from (_line(seed, row) for seed, row in selected.items())


def _line(seed: str, row: Rows) -> str:
    step = row["error"] if row["step_ms"] is None else f"{row['step_ms']:.4g}"
    others = ", ".join(f"{n} {100 * ratio:.2g} %" for n, ratio in faster_planners(row).items())
    start = min(row["starts_ms"], default=math.nan)
    return (
        f"| {seed} | {row['name']} | {tuple(row['mesh_shape'])} | {row['profile']} "
        f"| {row['budget_bytes'] / 2**20:.2f} | {step} | {start:.4g} | {others} |"
    )


if __name__ == "__main__":
    app.run(main)
