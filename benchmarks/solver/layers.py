"""`python -m benchmarks.solver.layers`: solving time by depth, and other solvers.

The problems are layered (see `layered`), with a budget of 60 % of the memory of the best unlimited
solution. The default solver runs at every depth. HiGHS and CP-SAT on the plain MILP, and toulbar2,
get the same time, up to the depth of `--compare-up-to`. Writes results/layers.json and
results/layers.md.
"""

import argparse
import json
import resource
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.solver.layered import layered_problem, with_budget
from kiwi.solver import Problem, solve

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Row:
    """One solve. `peak_resident_bytes` is the peak of the process so far."""

    layers: int
    nodes: int
    options: int
    solver: str
    build_seconds: float
    solve_seconds: float
    objective: float | None
    bound: float
    gap: float | None
    peak_resident_bytes: int


def main() -> None:
    """Runs all depths, and writes the results."""
    options = _arguments()
    rows = []
    solve(layered_problem(1))  # Compiles the inner loops.
    for layers in options.layers:
        started = time.monotonic()
        free = layered_problem(layers, seed=options.seed)
        build_seconds = time.monotonic() - started
        problem = with_budget(free, options.budget)
        rows.append(measure(problem, layers, "auto", options.time_limit, build_seconds))
        print(rows[-1], flush=True)
        limit = max(rows[-1].solve_seconds, options.least_seconds)
        for solver in ("highs", "cp-sat", "toulbar2"):
            if layers <= options.compare_up_to:
                rows.append(measure(problem, layers, solver, limit, build_seconds))
                print(rows[-1], flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "layers.json").write_text(json.dumps([asdict(row) for row in rows], indent=1))
    (RESULTS / "layers.md").write_text(table(rows))


def measure(
    problem: Problem, layers: int, solver: str, limit_seconds: float, build_seconds: float
) -> Row:
    """Solves a problem once."""
    result = solve(problem, solver=solver, time_limit_seconds=limit_seconds)
    return Row(
        layers,
        len(problem.nodes),
        problem.option_count,
        solver,
        build_seconds,
        result.seconds,
        result.objective,
        result.bound,
        result.gap,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def table(rows: list[Row]) -> str:
    """Returns the results as Markdown. The last column is the cost over the default solver's
    cost."""
    lines = [
        "| layers | nodes | options | solver | solve s | cost s | gap | cost / ours |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    default_cost = {row.layers: row.objective for row in rows if row.solver == "auto"}
    for row in rows:
        base = default_cost.get(row.layers)
        is_solved = row.objective is not None
        ratio = f"{row.objective / base:.4f}" if row.objective is not None and base else "-"
        gap = "-" if row.gap is None else f"{row.gap:.3%}"
        cost = f"{row.objective:.6f}" if is_solved else "none found"
        lines.append(
            f"| {row.layers} | {row.nodes} | {row.options} | {row.solver} "
            f"| {row.solve_seconds:.1f} | {cost} | {gap} | {ratio} |"
        )
    return "\n".join([*lines, ""])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", nargs="+", type=int, default=[2, 4, 20, 96])
    parser.add_argument("--budget", type=float, default=0.6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time-limit", type=float, default=120.0)
    parser.add_argument("--least-seconds", type=float, default=10.0)
    parser.add_argument("--compare-up-to", type=int, default=4)
    return parser.parse_args()


if __name__ == "__main__":
    main()
