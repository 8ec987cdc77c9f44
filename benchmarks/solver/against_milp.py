"""`python -m benchmarks.solver.against_milp --data DIR`: the same problems by the plain MILP.

HiGHS and CP-SAT solve the MILP of `kiwi.solver.milp` after the same presolve, in the same time as
the default solver. The contest's instances run with the contest's time limits, from process start,
and `benchmarks.solver.contest.check` checks every solution in integers. GPT layers are those of
`benchmarks.solver.models`, at the budgets recorded there. A process that is still running after
`PATIENCE` times its limit is ended: it was still writing its model. Results are added to the
recorded ones (results/against_milp.json and .md), so the solvers can be run one by one.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.solver import models
from benchmarks.solver.contest import INSTANCES, RESULTS, check

SOLVERS = ("auto", "highs", "cp-sat")
PATIENCE = 1.5
LAYERS_SECONDS = {1: 60.0, 4: 60.0, 20: 120.0}
"""Time limits of the GPT problems, by number of layers."""


@dataclass(frozen=True)
class Row:
    """One solve. `cost` is None if no feasible solution was found."""

    instance: str
    solver: str
    time_limit_seconds: float
    seconds: float
    cost: float | None
    bound: float | None
    status: str


def main() -> None:
    """Runs every requested instance with every requested solver, and writes the results."""
    options = _arguments()
    for instance in options.instances:
        for solver in options.solvers:
            row = _run(options.data, instance, solver)
            print(row, flush=True)
            _record(row)


def _record(row: Row) -> None:
    path = RESULTS / "against_milp.json"
    rows = [Row(**entry) for entry in json.loads(path.read_text())] if path.exists() else []
    row_of_run = {(r.instance, r.solver): r for r in [*rows, row]}
    names = [*(i.name for i in INSTANCES), *map(_gpt_name, LAYERS_SECONDS)]
    ordered = [row_of_run[n, s] for n in names for s in SOLVERS if (n, s) in row_of_run]
    path.write_text(json.dumps([asdict(r) for r in ordered], indent=1) + "\n")
    (RESULTS / "against_milp.md").write_text(table(ordered))


def _run(data: Path, instance: str, solver: str) -> Row:
    started = time.monotonic()
    limits = {i.name: float(i.time_limit_seconds) for i in INSTANCES}
    if instance in limits:
        limit = limits[instance]
        outcome = _contest(data, instance, solver, limit)
    else:
        layers = int(instance.removeprefix("gpt-").removesuffix("l"))
        limit = LAYERS_SECONDS[layers]
        outcome = _layers(layers, solver, limit)
    cost, bound, status = outcome or (None, None, "did not finish writing its model")
    seconds = round(time.monotonic() - started, 1)
    return Row(instance, solver, limit, seconds, cost, bound, status)


_Found = tuple[float | None, float | None, str]


def _contest(data: Path, instance: str, solver: str, limit_seconds: float) -> _Found | None:
    path = data / f"asplos-2025-iopddl-{instance}.json.gz"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "solution.json"
        command = ["kiwi.solver", str(path), "--solver", solver, "--quiet"]
        command += ["--time-limit", str(limit_seconds), "--out", str(out)]
        if _output_of(command, PATIENCE * limit_seconds) is None:
            return None
        solution_file = json.loads(out.read_text())
    cost, feasible = check(path, solution_file["solution"])
    return (cost if feasible else None), solution_file["bound"], solution_file["status"]


def _layers(layers: int, solver: str, limit_seconds: float) -> _Found | None:
    (budget_bytes,) = (r.budget_bytes for r in models.on_record() if r.layers == layers)
    command = ["benchmarks.solver.models", "--child", str(layers), "--solver", solver]
    command += ["--budget-bytes", str(budget_bytes), "--time-limit", str(limit_seconds)]
    output = _output_of([*command, "--gap", "0.001"], PATIENCE * limit_seconds)
    if output is None:
        return None
    row = json.loads(output.splitlines()[-1])
    bound = row["bound"] if abs(row["bound"]) < float("inf") else None
    return row["objective"], bound, "no solution found" if row["gap"] is None else "feasible"


def _output_of(module_and_arguments: list[str], most_seconds: float) -> str | None:
    """Returns the output of a Python module; None if it did not end in time.

    **Raises:** `RuntimeError` if the module fails.
    """
    command = [sys.executable, "-m", *module_and_arguments]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=most_seconds
        )
    except subprocess.TimeoutExpired:
        return None
    if process.returncode not in (0, 1):
        raise RuntimeError(process.stderr)
    return process.stdout


def _gpt_name(layers: int) -> str:
    return f"gpt-{layers}l"


def table(rows: list[Row]) -> str:
    """Returns the results as Markdown. The last column is the cost over the default solver's
    cost."""
    lines = [
        "| instance | solver | limit s | taken s | cost | bound | gap | status | cost / ours |",
        "| --- " * 9 + "|",
    ]
    default_cost = {row.instance: row.cost for row in rows if row.solver == "auto"}
    for row in rows:
        base = default_cost.get(row.instance)
        cost = "none found" if row.cost is None else f"{row.cost:,.10g}"
        ratio = f"{row.cost / base:.4f}" if row.cost is not None and base else "-"
        bound = "-" if row.bound is None else f"{row.bound:,.10g}"
        gap = "-" if row.cost is None or row.bound is None else f"{1 - row.bound / row.cost:.3%}"
        lines.append(
            f"| {row.instance} | {row.solver} | {row.time_limit_seconds:.0f} | {row.seconds:.0f} "
            f"| {cost} | {bound} | {gap} | {row.status} | {ratio} |"
        )
    return "\n".join([*lines, ""])


def _arguments() -> argparse.Namespace:
    names = [*(i.name for i in INSTANCES), *map(_gpt_name, LAYERS_SECONDS)]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the instances")
    parser.add_argument("--instances", nargs="+", default=names, choices=names)
    parser.add_argument("--solvers", nargs="+", default=list(SOLVERS), choices=SOLVERS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
