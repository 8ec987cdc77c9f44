"""`python -m benchmarks.solver.against_milp --data DIR`: contest instances by the plain MILP.

Gives HiGHS and CP-SAT, on the same MILP after the same presolve, the same seconds as the default
solver, from process start, and compares costs. Every solution is checked in integers by
`benchmarks.solver.contest.check`. Writes results/against_milp.json and results/against_milp.md.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.solver.contest import RESULTS, check


@dataclass(frozen=True)
class Row:
    """One solve; `cost` is None where nothing feasible was found."""

    instance: str
    solver: str
    time_limit_seconds: float
    cost: int | None
    bound: float | None
    status: str


def main() -> None:
    """Runs every instance with every solver and writes the results."""
    options = _arguments()
    rows = []
    for instance in options.instances:
        for solver in ("auto", "highs", "cp-sat"):
            rows.append(_run(options.data, instance, solver, options.time_limit))
            print(rows[-1], flush=True)
    (RESULTS / "against_milp.json").write_text(json.dumps([asdict(r) for r in rows], indent=1))
    (RESULTS / "against_milp.md").write_text(table(rows))


def _run(data: Path, instance: str, solver: str, limit_seconds: float) -> Row:
    path = data / f"asplos-2025-iopddl-{instance}.json.gz"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "solution.json"
        command = [sys.executable, "-m", "kiwi.solver", str(path), "--solver", solver, "--quiet"]
        command += ["--time-limit", str(limit_seconds), "--out", str(out)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode not in (0, 1):
            raise RuntimeError(process.stderr)
        found = json.loads(out.read_text())
    cost, feasible = check(path, found["solution"])
    return Row(
        instance,
        solver,
        limit_seconds,
        cost if feasible else None,
        found["bound"],
        found["status"],
    )


def table(rows: list[Row]) -> str:
    """Markdown; the last column is the cost over that of the default solver."""
    lines = [
        "| instance | solver | limit s | cost | bound | status | cost / ours |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    ours = {row.instance: row.cost for row in rows if row.solver == "auto"}
    for row in rows:
        base = ours.get(row.instance)
        cost = "none found" if row.cost is None else f"{row.cost:,}"
        ratio = f"{row.cost / base:.4f}" if row.cost is not None and base else "-"
        bound = "-" if row.bound is None else f"{row.bound:,.0f}"
        lines.append(
            f"| {row.instance} | {row.solver} | {row.time_limit_seconds:.0f} | {cost} | {bound} "
            f"| {row.status} | {ratio} |"
        )
    return "\n".join([*lines, ""])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the instances")
    parser.add_argument("--instances", nargs="+", default=["B", "G"])
    parser.add_argument("--time-limit", type=float, default=60.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
