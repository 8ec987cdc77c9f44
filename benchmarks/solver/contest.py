"""`python -m benchmarks.solver.contest --data DIR`: the contest's instances against published
values.

Runs `python -m kiwi.solver` once for each instance and seed in its own process, with the contest's
time limit from process start. Checks each solution file by integer arithmetic on the published
instance. Writes results/contest.json, results/contest.md and, with matplotlib, results/contest.png
(cost and bound over time, beside those of results/contest_before.json). Published values are the
contest's leader board, the best values known since (ASPLOS/EuroSys 2025 contest on intra-operator
parallelism; google/iopddl), and lower bounds.
"""

import argparse
import gzip
import itertools
import json
import math
import re
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
_PANELS_IN_A_ROW = 4


@dataclass(frozen=True)
class Instance:
    """One instance of the contest: its time limit (in the contest on 8 cores) and published
    values."""

    name: str
    time_limit_seconds: float
    contest_best: int
    best_known: int
    published_bound: float


INSTANCES = (
    Instance("A", 60, 6_548_641_531, 6_548_641_531, 6.51381e9),
    Instance("B", 60, 532_843, 532_843, 532_843),
    Instance("C", 60, 84_102_445_260, 84_102_445_244, 8.2509e10),
    Instance("G", 120, 217_039, 217_039, 216_931),
    Instance("M", 180, 49_928_460_991, 49_928_157_537, 4.94074e10),
    Instance("P", 240, 662_197_407_330, 662_197_407_330, 6.16246e11),
    Instance("Q", 240, 526_776_842_042, 526_776_842_042, 5.0555e11),
    Instance("S", 240, 1_534_613_444, 1_511_377_982, 1.51124e9),
)


@dataclass(frozen=True)
class Run:
    """One checked solution. `trace` holds (seconds, cost or None, bound). Processor seconds are
    fewer than wall seconds if the machine had other work."""

    instance: str
    seed: int
    time_limit_seconds: float
    seconds: float
    cost: int | None
    feasible: bool
    bound: float | None
    status: str
    score: float
    trace: list[tuple[float, float | None, float]]
    processor_seconds: float | None = None


def main() -> None:
    """Runs the requested instances, and writes the results."""
    options = _arguments()
    runs = []
    for instance in INSTANCES:
        if instance.name in options.instances:
            for seed in options.seeds:
                runs.append(run_instance(options.data, instance, seed, options.share))
                print(_line(instance, runs[-1]), flush=True)
    RESULTS.mkdir(exist_ok=True)
    runs = _with_earlier(runs)
    (RESULTS / "contest.json").write_text(json.dumps([asdict(run) for run in runs], indent=1))
    (RESULTS / "contest.md").write_text(table(runs))
    plot(runs, _on_record(options.before), options.picture)


def _on_record(path: Path) -> list[Run]:
    return [Run(**run) for run in json.loads(path.read_text())] if path.exists() else []


def _with_earlier(runs: list[Run]) -> list[Run]:
    """Returns the runs and the recorded results of instances that were not run now."""
    earlier = _on_record(RESULTS / "contest.json")
    run_by_key = {(run.instance, run.seed): run for run in [*earlier, *runs]}
    return [run_by_key[key] for key in sorted(run_by_key)]


def run_instance(data: Path, instance: Instance, seed: int, share: float) -> Run:
    """Solves in a new process, with `share` of the contest's time limit, and checks the result.

    **Raises:** `RuntimeError` if the solver's process fails.
    """
    path = data / f"asplos-2025-iopddl-{instance.name}.json.gz"
    out = RESULTS / "solution.json"
    RESULTS.mkdir(exist_ok=True)
    limit = share * instance.time_limit_seconds
    command = [sys.executable, "-m", "kiwi.solver", str(path), "--time-limit", str(limit)]
    started, before = time.monotonic(), _children_seconds()
    process = subprocess.run(
        [*command, "--seed", str(seed), "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - started
    if process.returncode not in (0, 1):
        raise RuntimeError(process.stderr)
    solution_file = json.loads(out.read_text())
    out.unlink()
    cost, feasible = check(path, solution_file["solution"])
    return Run(
        instance.name,
        seed,
        limit,
        round(seconds, 1),
        cost,
        feasible,
        solution_file["bound"],
        solution_file["status"],
        instance.best_known / cost if feasible and cost else 0.0,
        _trace(process.stdout),
        round(_children_seconds() - before, 1),
    )


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def check(path: Path, solution: list[int] | None) -> tuple[int | None, bool]:
    """Returns the cost in integers, and whether the memory limit is met. Shares no code with the
    solver."""
    if solution is None:
        return None, False
    body = json.loads(gzip.decompress(path.read_bytes()))["problem"]
    nodes, edges = body["nodes"], body["edges"]
    cost = sum(costs[o] for costs, o in zip(nodes["costs"], solution, strict=True))
    for (tail, head), costs in zip(edges["nodes"], edges["costs"], strict=True):
        cost += costs[solution[tail] * len(nodes["costs"][head]) + solution[head]]
    changes: dict[int, int] = {}
    for interval, usage, o in zip(nodes["intervals"], nodes["usages"], solution, strict=True):
        for time_point, sign in zip(interval, (1, -1), strict=True):
            changes[time_point] = changes.get(time_point, 0) + sign * usage[o]
    held = 0
    for time_point in sorted(changes):
        held += changes[time_point]
        if held > body["usage_limit"]:
            return cost, False
    return cost, cost < 10**17


def _trace(output: str) -> list[tuple[float, float | None, float]]:
    pattern = re.compile(r"^ *([\d.]+) s  cost (\S+)  bound (\S+)", re.MULTILINE)
    return [
        (float(seconds), None if cost == "-" else float(cost), float(bound))
        for seconds, cost, bound in pattern.findall(output)
    ]


def _line(instance: Instance, run: Run) -> str:
    return (
        f"{run.instance} seed {run.seed}: {run.cost} ({run.status}, feasible {run.feasible}), "
        f"bound {run.bound}, best known / ours {run.score:.6f}, {run.seconds} s"
    )


def table(runs: list[Run]) -> str:
    """Returns the results as Markdown: one row per run, and the mean score."""
    known = {instance.name: instance for instance in INSTANCES}
    lines = [
        "| instance | seed | limit s | taken s | processor s | cost | best known "
        "| best known / ours | our bound | our gap | published bound | status |",
        "| --- " * 12 + "|",
    ]
    for run in runs:
        instance = known[run.instance]
        gap = "-" if not run.cost or run.bound is None else f"{1 - run.bound / run.cost:.4%}"
        bound = "-" if run.bound is None else f"{run.bound:,.0f}"
        cost = "none found" if run.cost is None else f"{run.cost:,}"
        used = "-" if run.processor_seconds is None else run.processor_seconds
        lines.append(
            f"| {run.instance} | {run.seed} | {run.time_limit_seconds:.0f} | {run.seconds} "
            f"| {used} | {cost} | {instance.best_known:,} | {run.score:.6f} | {bound} | {gap} "
            f"| {instance.published_bound:,.0f} | {run.status} |"
        )
    mean = sum(run.score for run in runs) / max(1, len(runs))
    return "\n".join([*lines, "", f"Mean of best known / ours: {mean:.6f}", ""])


def plot(runs: list[Run], before: list[Run], path: Path) -> None:
    """Draws cost and bound over time, relative to the best known cost, with one panel per instance.
    Dashed lines are the runs in `before`."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = sorted({run.instance for run in runs})
    rows = math.ceil(len(names) / _PANELS_IN_A_ROW)
    figure, axes = pyplot.subplots(
        rows, _PANELS_IN_A_ROW, figsize=(3.2 * _PANELS_IN_A_ROW, 2.6 * rows), squeeze=False
    )
    for axis, name in itertools.zip_longest(axes.flat, names):
        if name is None:
            axis.set_axis_off()
            continue
        for run in [run for run in before if run.instance == name]:
            _draw(axis, run, "dashed")
        for run in [run for run in runs if run.instance == name]:
            _draw(axis, run, "solid")
        axis.set(title=name, xlabel="seconds", ylim=(0.65, 1.55))
    for row in axes:
        row[0].set_ylabel("cost (blue) and bound\n/ best known")
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def _draw(axis: Any, run: Run, style: str) -> None:
    """Draws the lines of a run, extended to its end."""
    best = next(i.best_known for i in INSTANCES if i.name == run.instance)
    trace = [*run.trace, (run.seconds, *run.trace[-1][1:])] if run.trace else []
    costs = [(t, c / best) for t, c, _ in trace if c is not None]
    bounds = [(t, b / best) for t, _, b in trace]
    for points, color in ((costs, "C0"), (bounds, "C1")):
        if points:
            axis.step(*zip(*points, strict=True), where="post", color=color, linestyle=style)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the instances")
    parser.add_argument("--instances", nargs="+", default=[i.name for i in INSTANCES])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--share", type=float, default=1.0, help="share of the time limits")
    parser.add_argument("--before", type=Path, default=RESULTS / "contest_before.json")
    parser.add_argument("--picture", type=Path, default=RESULTS / "contest.png")
    return parser.parse_args()


if __name__ == "__main__":
    main()
