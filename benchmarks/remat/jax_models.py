"""Planners on real JAX training steps on one device: overhead, compiled peak, planning time.

    python -m benchmarks.remat.jax_models --models gpt-4 gpt-12 --planners remat rotor

Each step is traced once. Budgets are shares of what the given order needs beyond arguments and
results. The planned schedule is emitted and compiled by XLA:CPU; "compiled" is the peak that
the compiler reports, beside the budget. Models are scaled down so that compiling is quick:
their structure and number of layers are what planning depends on.

Rows are written one by one to `--out`; those that are there already are not made again.
"""

import argparse
import datetime
import json
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

import kiwi.api
from examples import convnet, encoder, encoder_decoder, gpt, unet, vit
from kiwi.errors import InfeasibleBudgetError, KiwiError
from kiwi.plan.plan import Plan
from kiwi.plan.verify import verify_on_cpu
from kiwi.solver.remat import PLANNERS, RematGraph, RematResult, order_peak_bytes, solve
from kiwi.strategy.remat_graph import one_device_strategies, remat_graph

MEBIBYTE = 1 << 20
NO_LIMIT = "100TiB"
RESULTS = Path(__file__).parent / "results" / "jax_models.json"
MOST_OPERATORS = {"checkmate": 150, "checkmate-lp": 150, "rk-checkmate": 150, "moccasin": 600}
"""Larger graphs are not given to these: building their programs alone takes minutes."""


@dataclass(frozen=True)
class Row:
    """One planner on one model under one budget; None where it found or compiled nothing.

    `note`: why there is no schedule, or that the compiled peak is over the budget.
    """

    model: str
    operators: int
    budget_percent: int
    planner: str
    budget_mib: float
    overhead_percent: float | None = None
    predicted_mib: float | None = None
    compiled_mib: float | None = None
    planning_seconds: float | None = None
    note: str = ""

    @property
    def key(self) -> tuple[str, int, str]:
        """What a row is of."""
        return self.model, self.budget_percent, self.planner


@dataclass(frozen=True)
class Traced:
    """A model's step: the plan that keeps everything, and its graph."""

    name: str
    base: Plan
    graph: RematGraph


def _gpt(layers: int) -> tuple[Any, ...]:
    config = replace(
        gpt.SIZES["gpt-125m"],
        layers=layers,
        width=128,
        heads=4,
        batch=8,
        sequence=128,
        vocabulary=512,
    )
    return gpt.make_train_step(config), gpt.abstract_state(config), gpt.abstract_batch(config)


def _mlp(layers: int) -> tuple[Any, ...]:
    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return jnp.mean(x**2)

    def step(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
        return [w - 0.1 * g for w, g in zip(weights, jax.grad(loss)(weights, x), strict=True)]

    weights = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * layers
    return step, weights, jax.ShapeDtypeStruct((2048, 64), jnp.float32)


def _tiny(module: Any) -> tuple[Any, ...]:
    config = module.SIZES["tiny"]
    state, batch = module.abstract_state(config), module.abstract_batch(config)
    return module.make_train_step(config), state, batch


MODELS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "mlp-12": lambda: _mlp(12),
    **{f"gpt-{n}": (lambda n=n: _gpt(n)) for n in (2, 4, 12, 24, 48, 96)},
    "convnet": lambda: _tiny(convnet),
    "encoder": lambda: _tiny(encoder),
    "encoder-decoder": lambda: _tiny(encoder_decoder),
    "unet": lambda: _tiny(unet),
    "vit": lambda: _tiny(vit),
}


def main() -> None:
    """Makes the rows that are missing, each written at once, then the table."""
    options = _parser().parse_args()
    rows = _read(options.out)
    for name in options.models:
        wanted = [(p, planner) for p in options.budgets for planner in options.planners]
        missing = [(p, planner) for p, planner in wanted if (name, p, planner) not in rows]
        if missing:
            traced = trace_model(name)
            for percent, planner in missing:
                row = make_row(traced, planner, percent, options.time_limit, options.compilations)
                rows[row.key] = row
                _write(options, list(rows.values()))
    Console(width=120).print(_table(_sorted(rows)))


def trace_model(name: str) -> Traced:
    """Traces and plans without recomputation: on one device nothing else is left to decide."""
    step, state, batch = MODELS[name]()
    base = kiwi.api.plan(
        step,
        state,
        batch,
        mesh_shape=(1,),
        memory_budget=NO_LIMIT,
        planner="keep-all",
        verify=None,
        donate_argnums=0,
    )
    units = base.execution.units
    return Traced(name, base, remat_graph(units, one_device_strategies(units, base.mesh)))


def make_row(
    traced: Traced, planner: str, percent: int, time_limit: float, compilations: int
) -> Row:
    """One planner under one budget."""
    graph, count = traced.graph, len(traced.graph.operators)
    beyond = order_peak_bytes(graph) - graph.resident_bytes
    budget = graph.resident_bytes + beyond * percent // 100
    row = Row(traced.name, count, percent, planner, budget / MEBIBYTE)
    if count > MOST_OPERATORS.get(planner, count):
        return replace(row, note=f"not for over {MOST_OPERATORS[planner]} operators")
    last = row
    for attempt in _attempts(traced, planner, budget, time_limit, max(1, compilations)):
        last = replace(row, **attempt)
        if not compilations:
            break
    if last.compiled_mib is not None and last.compiled_mib > last.budget_mib:
        last = replace(last, note="over budget as compiled")
    return last


def _attempts(
    traced: Traced, planner: str, budget: int, time_limit: float, compilations: int
) -> Iterator[dict[str, Any]]:
    """What is known after planning, and after each compilation.

    While the compiled peak is over the budget, it is planned again under a lower limit.
    """
    limit, seconds = budget, 0.0
    for number in range(compilations):
        started = time.monotonic()
        try:
            result = solve(traced.graph, limit, planner, time_limit)
        except InfeasibleBudgetError as error:
            if number == 0:
                least = (error.least_peak_bytes or 0) / MEBIBYTE
                bound = (error.least_peak_bound_bytes or 0) / MEBIBYTE
                note = f"none found: least known {least:.1f}, at least {bound:.1f} MiB"
                yield {"planning_seconds": time.monotonic() - started, "note": note}
            return
        except KiwiError as error:
            yield {"planning_seconds": time.monotonic() - started, "note": error.what}
            return
        seconds += result.seconds
        found = _figures(traced, result, seconds)
        yield found
        peak = _compiled_peak_bytes(traced, result)
        yield {**found, "compiled_mib": peak / MEBIBYTE}
        limit -= peak - budget
        if peak <= budget or limit <= 0:
            return


def _figures(traced: Traced, result: RematResult, seconds: float) -> dict[str, Any]:
    return {
        "overhead_percent": 100 * result.overhead,
        "predicted_mib": result.peak_bytes / MEBIBYTE,
        "planning_seconds": seconds,
    }


def _compiled_peak_bytes(traced: Traced, result: RematResult) -> int:
    execution = replace(traced.base.execution, schedule=result.schedule)
    return verify_on_cpu(replace(traced.base, execution=execution).step).peak_bytes


def _read(path: Path) -> dict[tuple[str, int, str], Row]:
    if not path.exists():
        return {}
    rows = [Row(**each) for each in json.loads(path.read_text())["rows"]]
    return {row.key: row for row in rows}


def _write(options: argparse.Namespace, rows: list[Row]) -> None:
    packages = ("jax", "jaxlib", "numpy", "ortools", "numba")
    head = {
        "command": "python -m benchmarks.remat.jax_models",
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in packages},
        "time_limit_seconds": options.time_limit,
    }
    ordered = _sorted({row.key: row for row in rows})
    text = json.dumps({**head, "rows": [asdict(row) for row in ordered]}, indent=1)
    options.out.write_text(text + "\n")
    with options.out.with_suffix(".txt").open("w") as file:
        Console(file=file, width=120).print(_table(ordered))


def _sorted(rows: dict[tuple[str, int, str], Row]) -> list[Row]:
    names = list(MODELS)
    return sorted(rows.values(), key=lambda r: (names.index(r.model), -r.budget_percent, r.planner))


def _table(rows: list[Row]) -> Table:
    columns = ("model", "operators", "budget %", "planner", "overhead %", "budget MiB")
    table = Table(*columns, "predicted", "compiled", "planning s", "")
    for row in rows:
        shown = (row.predicted_mib, row.compiled_mib, row.planning_seconds)
        table.add_row(
            *(row.model, str(row.operators), str(row.budget_percent), row.planner),
            "" if row.overhead_percent is None else f"{row.overhead_percent:.2f}",
            f"{row.budget_mib:.2f}",
            *("" if value is None else f"{value:.2f}" for value in shown),
            row.note,
        )
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=["gpt-2", "gpt-4"])
    parser.add_argument("--planners", nargs="+", choices=sorted(PLANNERS), default=sorted(PLANNERS))
    parser.add_argument("--budgets", nargs="+", type=int, default=[80, 60, 40], help="per cent")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each plan")
    parser.add_argument(
        "--compilations", type=int, default=3, help="at most, for each row; 0: plan alone"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser


if __name__ == "__main__":
    main()
