"""`python -m benchmarks.solver.budgets`: gaps of four GPT-13B layers on V100s at 14, 9 and 7 GiB.

The problem is that of planner `joint` for the V100 rows of `make demo`, without the closed loop.
Each budget is searched once to the end. A row also holds the gap after each of the first two
rounds, which every search without a solution runs, whatever its time limit. Rounds and work end a
search, not the clock. Writes results/budgets.json and results/budgets.md.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import kiwi
from benchmarks.solver.generated.models import use_devices
from examples import gpt
from kiwi.planners.registry import planner_named
from kiwi.solver import Problem, Progress, solve, warm_up

RESULTS = Path(__file__).parent / "results"
SIZE, MESH_SHAPE, PROFILE = "gpt-13b-4l", (2, 4), "v100-sxm2"
BUDGETS_GIB = (14, 9, 7)
TARGET_GAP = 0.02
_NO_TIME_LIMIT_SECONDS = 1e6
_EARLY_ROUNDS = 2


@dataclass(frozen=True)
class Row:
    """The search at one budget.

    - `early_gaps`: the gaps after the first rounds; None if there is no solution yet.
    - `work`: the number of options and table cells that sweeps and trees visited.
    """

    budget_gib: int
    nodes: int
    options: int
    objective: float | None
    bound: float
    gap: float | None
    early_gaps: tuple[float | None, ...]
    rounds: int
    work: int
    processor_seconds: float


def main() -> None:
    """Searches each budget, and writes the results."""
    use_devices()
    warm_up()
    free = problem()
    rows = []
    for budget_gib in BUDGETS_GIB:
        rows.append(measure(free, budget_gib))
        print(rows[-1], flush=True)
    (RESULTS / "budgets.json").write_text(json.dumps([asdict(row) for row in rows], indent=1))
    (RESULTS / "budgets.md").write_text(table(rows))


def problem() -> Problem:
    """Returns the problem, with an arbitrary limit."""
    config = gpt.SIZES[SIZE]
    planned = kiwi.jit(
        gpt.make_train_step(config), mesh_shape=MESH_SHAPE, profile=PROFILE, donate_argnums=0
    )
    traced = planned.traced(gpt.abstract_state(config), gpt.abstract_batch(config))
    budget_bytes = planned.settings.memory_budget_bytes
    return planner_named("joint").formulate(traced, budget_bytes, planned.settings).problem


def measure(free: Problem, budget_gib: int) -> Row:
    """Searches the problem at a budget."""
    limited = replace(free, limit_bytes=budget_gib * 2**30)
    early: list[float | None] = []

    def note(state: Progress) -> None:
        if len(early) < min(state.iterations, _EARLY_ROUNDS):
            early.append(state.gap)

    started = time.process_time()
    result = solve(limited, time_limit_seconds=_NO_TIME_LIMIT_SECONDS, on_progress=note)
    return Row(
        budget_gib=budget_gib,
        nodes=len(limited.nodes),
        options=limited.option_count,
        objective=result.objective,
        bound=result.bound,
        gap=result.gap,
        early_gaps=tuple(early),
        rounds=result.iterations,
        work=result.work,
        processor_seconds=time.process_time() - started,
    )


def table(rows: Sequence[Row]) -> str:
    """Returns the results as Markdown, with one row per budget."""
    lines = [
        "| budget GiB | nodes | options | cost ms | gap | after the first round | after the second "
        "| rounds | work, cells | processor s | 2 % |",
        "| --- " * 11 + "|",
        *map(_line, rows),
    ]
    return "\n".join([*lines, ""])


def _line(row: Row) -> str:
    cost = "-" if row.objective is None else f"{row.objective * 1e3:.3f}"
    met = "met" if row.gap is not None and row.gap <= TARGET_GAP else "missed"
    first, second = map(_percent, (*row.early_gaps, None, None)[:2])
    return (
        f"| {row.budget_gib} | {row.nodes} | {row.options} | {cost} | {_percent(row.gap)} "
        f"| {first} | {second} | {row.rounds} | {row.work:.2e} | {row.processor_seconds:.1f} "
        f"| {met} |"
    )


def _percent(gap: float | None) -> str:
    return "-" if gap is None else f"{gap:.3%}"


if __name__ == "__main__":
    main()
