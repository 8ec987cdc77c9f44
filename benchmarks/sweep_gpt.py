"""`kiwi sweep` of gpt-13b-4l: five meshes, six budgets, two processes.

python -m benchmarks.sweep_gpt
"""

import json
import os
import platform
from pathlib import Path

import jax

from kiwi.sweep import Sweep, sweep, sweep_json

MESHES = [(4,), (8,), (2, 4), (4, 2), (2, 8)]
BUDGETS = ["6GiB", "8GiB", "10GiB", "14GiB", "20GiB", "40GiB"]
FUNCTION = "examples/gpt_13b_4l.py:train_step"
RESULTS = Path(__file__).parent / "sweep_results"
GIB = 2**30


def main() -> None:
    """Runs the sweep, and writes `sweep_results/gpt_13b_4l.{json,md}`."""
    result = sweep(FUNCTION, MESHES, BUDGETS, jobs=2, donate_argnums=0)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "gpt_13b_4l.json").write_text(json.dumps(sweep_json(result), indent=1) + "\n")
    text = _markdown(result)
    (RESULTS / "gpt_13b_4l.md").write_text(text)
    print(text)


def _markdown(found: Sweep) -> str:
    lines = [
        "# Sweep of gpt-13b-4l, h100-sxm",
        "",
        f"{len(found.points)} combinations in {found.seconds:.0f} s (target: 180), two "
        f"processes, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"jax {jax.__version__}. Estimates, not compiled, by `python -m benchmarks.sweep_gpt`.",
        "",
        "| mesh | budget GiB | step ms | peak GiB | gap | how | seconds | Pareto |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for p in found.points:
        mesh, budget = "x".join(map(str, p.mesh_shape)), f"{p.memory_budget_bytes / GIB:.0f}"
        if p.step_seconds is None or p.peak_bytes is None:
            lines.append(f"| {mesh} | {budget} | | | | {p.error} | {p.seconds:.1f} | |")
            continue
        gap = "" if p.gap is None else f"{p.gap:.1%}"
        front = "*" if p in found.pareto else ""
        lines.append(
            f"| {mesh} | {budget} | {1e3 * p.step_seconds:.1f} | {p.peak_bytes / GIB:.2f} | {gap} "
            f"| {p.how} | {p.seconds:.1f} | {front} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
