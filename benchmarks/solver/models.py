"""`python -m benchmarks.solver.models`: real GPT layers from tracing to a plan with a bound.

The layers are decoder layers as in GPT-3 13B (width 5120, batch 16 x 1024, single precision,
AdamW), with forward pass, backward pass and update, on a (2, 4) mesh of V100s. The budget is 60 %
of the peak of the best plan without a limit. Each depth runs in a process of its own, so that the
peak of resident memory is the depth's own. The seconds count everything from tracing to the
solution. They do not count the start of the process (imports, loading compiled inner loops) and the
search for the budget, which a user already has. Writes results/models.json and results/models.md.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
MESH_SHAPE = (2, 4)
PROFILE = "v100-sxm2"
TARGETS = {4: (5.0, 0.01), 20: (30.0, 0.02), 96: (120.0, 0.03)}
"""The target seconds and gap, by number of layers."""
_GAP_OF_BUDGET = 0.05


@dataclass(frozen=True)
class Row:
    """The results of one depth. `solve_seconds` includes presolve. `seconds` is the sum of all
    stages, and `cpu_seconds` their processor time, which is less if the machine had other work."""

    layers: int
    operators: int
    units: int
    options: int
    budget_bytes: int
    trace_seconds: float
    lower_seconds: float
    units_seconds: float
    problem_seconds: float
    solve_seconds: float
    seconds: float
    cpu_seconds: float
    objective: float | None
    bound: float
    gap: float | None
    peak_resident_bytes: int


def main() -> None:
    """Runs all depths, each in its own process, and writes the results."""
    options = _arguments()
    if options.child is not None:
        print(json.dumps(asdict(measure(options.child, options.budget_bytes, options))))
        return
    _in_process(1, 0, options)  # Compiles the inner loops if that was never done.
    rows = []
    for layers in options.layers:
        rows.append(_in_process(layers, _budget_bytes(layers, options), options))
        print(_line(rows[-1]), flush=True)
    rows = _with_earlier(rows)
    (RESULTS / "models.json").write_text(json.dumps([asdict(row) for row in rows], indent=1))
    (RESULTS / "models.md").write_text(table(rows))


def _budget_bytes(layers: int, options: argparse.Namespace) -> int:
    """Returns the budget of this depth: the recorded one if `--recorded-budgets` is set, or a share
    of the free plan's peak."""
    if options.recorded_budgets:
        for row in on_record():
            if row.layers == layers:
                return row.budget_bytes
    free = _in_process(layers, 0, options)
    return int(options.budget * free.budget_bytes)


def on_record() -> list[Row]:
    """Returns the recorded results."""
    path = RESULTS / "models.json"
    return [Row(**row) for row in json.loads(path.read_text())] if path.exists() else []


def _with_earlier(rows: list[Row]) -> list[Row]:
    """Returns the rows and the recorded results of depths that were not run now."""
    by_depth = {row.layers: row for row in [*on_record(), *rows]}
    return [by_depth[layers] for layers in sorted(by_depth)]


def _in_process(layers: int, budget_bytes: int, options: argparse.Namespace) -> Row:
    command = [sys.executable, "-m", "benchmarks.solver.models", "--child", str(layers)]
    command += ["--budget-bytes", str(budget_bytes), "--gap", str(options.gap)]
    command += ["--time-limit", str(options.time_limit), "--seed", str(options.seed)]
    command += ["--solver", options.solver]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise RuntimeError(process.stderr)
    return Row(**json.loads(process.stdout.splitlines()[-1]))


class _Clock:
    """A clock that measures the seconds since the last lap."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def lap(self) -> float:
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        return seconds


def _training_step(layers: int) -> tuple[Callable[..., list[Any]], list[Any], int]:
    """Returns the step as a function of flat arguments, these arguments, and the number of them
    that belong to the state."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    from examples import gpt

    config = replace(gpt.SIZES["gpt-13b-4l"], layers=layers)
    step = gpt.make_train_step(config)
    state, tree = jax.tree.flatten(gpt.abstract_state(config))
    batch, batch_tree = jax.tree.flatten(gpt.abstract_batch(config))

    def flat(*leaves: jax.Array) -> list[jax.Array]:
        arguments = tree.unflatten(leaves[: len(state)]), batch_tree.unflatten(leaves[len(state) :])
        return jax.tree.leaves(step(*arguments))

    return flat, [*state, *batch], len(state)


def measure(layers: int, budget_bytes: int, options: argparse.Namespace) -> Row:
    """Plans `layers` layers. A budget of 0 means no limit; the row's `budget_bytes` is then the
    peak of the plan that was found."""
    from kiwi.hlo.grouping import build_units
    from kiwi.hlo.lowering import lower
    from kiwi.hlo.tracing import trace
    from kiwi.mesh import DeviceMesh, hardware
    from kiwi.problem.build import Fixed, build_problem
    from kiwi.solver import evaluate, solve, warm_up
    from kiwi.solver.settle import settled
    from kiwi.targets.registry import target_of

    flat, arguments, state_size = _training_step(layers)
    mesh = DeviceMesh.create(MESH_SHAPE, hardware(PROFILE), None)
    warm_up()
    clock, cpu_started = _Clock(), time.process_time()
    program = trace(flat, arguments)
    trace_seconds = clock.lap()
    graph = lower(program)
    lower_seconds = clock.lap()
    units = build_units(graph, frozenset(program.arguments[:state_size]))
    units_seconds = clock.lap()
    carried = {
        k: program.arguments[k] for k in range(state_size)
    }  # The state comes first in arguments and results.
    fixed = Fixed({}, {}, carried)
    kernels = target_of(mesh.hardware).kernels(units, mesh.hardware)
    problem = build_problem(kernels, mesh, fixed, budget_bytes or None).problem
    problem_seconds = clock.lap()
    spent = trace_seconds + lower_seconds + units_seconds + problem_seconds
    result = solve(
        problem,
        time_limit_seconds=max(1.0, options.time_limit - spent),
        seed=options.seed,
        solver=options.solver,
        gap=options.gap if budget_bytes else _GAP_OF_BUDGET,
    )
    solve_seconds = clock.lap()
    if (
        not budget_bytes and result.solution is not None
    ):  # The peak without values that the solution holds needlessly.
        budget_bytes = evaluate(problem, settled(problem, result.solution)).peak_bytes
    return Row(
        layers=layers,
        operators=len(graph.operators),
        units=len(units.units),
        options=problem.option_count,
        budget_bytes=budget_bytes,
        trace_seconds=trace_seconds,
        lower_seconds=lower_seconds,
        units_seconds=units_seconds,
        problem_seconds=problem_seconds,
        solve_seconds=solve_seconds,
        seconds=spent + solve_seconds,
        cpu_seconds=time.process_time() - cpu_started,
        objective=result.objective,
        bound=result.bound,
        gap=result.gap,
        peak_resident_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def _line(row: Row) -> str:
    gap = "-" if row.gap is None else f"{row.gap:.3%}"
    return (
        f"| {row.layers} | {row.operators} | {row.units} | {row.options} "
        f"| {row.trace_seconds:.1f} | {row.lower_seconds:.1f} | {row.units_seconds:.1f} "
        f"| {row.problem_seconds:.1f} | {row.solve_seconds:.1f} | {row.seconds:.1f} "
        f"| {row.cpu_seconds:.1f} | {gap} "
        f"| {row.peak_resident_bytes / 2**30:.2f} | {_target(row)} |"
    )


def _target(row: Row) -> str:
    if row.layers not in TARGETS:
        return "-"
    seconds, gap = TARGETS[row.layers]
    met = row.seconds <= seconds and row.gap is not None and row.gap <= gap
    return f"{seconds:.0f} s, {gap:.0%}: {'met' if met else 'missed'}"


def table(rows: list[Row]) -> str:
    """Returns the results as Markdown, with one row per depth."""
    lines = [
        "| layers | operators | units | options | trace s | lower s | units s | problem s "
        "| solve s | all s | CPU s | gap | resident GiB | target |",
        "| --- " * 14 + "|",
        *map(_line, rows),
    ]
    return "\n".join([*lines, ""])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", nargs="+", type=int, default=[1, 4, 12, 20, 24, 48, 96])
    parser.add_argument("--budget", type=float, default=0.6)
    parser.add_argument("--recorded-budgets", action="store_true", help="as in results/models.json")
    parser.add_argument("--gap", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--solver", default="auto")
    parser.add_argument("--time-limit", type=float, default=120.0)
    parser.add_argument("--child", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--budget-bytes", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
