"""Planners on real JAX training steps on one device: overhead, compiled peak, planning time.

    python -m benchmarks.remat.jax_models --models gpt-4 gpt-12 --planners remat rotor --out r.json

Each step is traced once. Budgets are shares of what the given order needs beyond arguments and
results. The planned schedule is emitted and compiled by XLA:CPU; "compiled" is the peak that
the compiler reports, beside the budget. Models are scaled down so that compiling is quick:
their structure and number of layers are what planning depends on.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import kiwi.api
from examples import convnet, encoder, encoder_decoder, gpt, unet, vit
from kiwi.errors import InfeasibleBudgetError
from kiwi.plan.plan import Plan
from kiwi.plan.verify import verify_on_cpu
from kiwi.solver.remat import PLANNERS, RematGraph, RematResult, order_peak_bytes, solve
from kiwi.strategy.remat_graph import one_device_strategies, remat_graph

MEBIBYTE = 1 << 20
NO_LIMIT = "100TiB"
MOST_ROUNDS = 4


@dataclass(frozen=True)
class Cell:
    """One planner on one model under one budget; None where it found no schedule."""

    model: str
    operators: int
    budget_percent: int
    planner: str
    budget_mib: float
    overhead_percent: float | None = None
    predicted_mib: float | None = None
    compiled_mib: float | None = None
    planning_seconds: float | None = None


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


def _tiny(module: Any) -> tuple[Any, ...]:
    config = module.SIZES["tiny"]
    state, batch = module.abstract_state(config), module.abstract_batch(config)
    return module.make_train_step(config), state, batch


MODELS: dict[str, Callable[[], tuple[Any, ...]]] = {
    **{f"gpt-{n}": (lambda n=n: _gpt(n)) for n in (2, 4, 12, 24, 48, 96)},
    "convnet": lambda: _tiny(convnet),
    "encoder": lambda: _tiny(encoder),
    "encoder-decoder": lambda: _tiny(encoder_decoder),
    "unet": lambda: _tiny(unet),
    "vit": lambda: _tiny(vit),
}


def main() -> None:
    """Runs all cells, writes JSON after each model and the table at the end, prints the table."""
    options = _parser().parse_args()
    cells: list[Cell] = []
    for name in options.models:
        cells += run_model(
            name, options.planners, options.budgets, options.time_limit, options.compile
        )
        if options.out is not None:
            options.out.write_text(json.dumps([asdict(cell) for cell in cells], indent=1) + "\n")
    if options.out is not None:
        with options.out.with_suffix(".txt").open("w") as file:
            Console(file=file, width=110).print(_table(cells))
    Console(width=110).print(_table(cells))


def run_model(
    name: str, planners: list[str], budgets: list[int], time_limit: float, compiled: bool
) -> list[Cell]:
    """All planners and budgets on one model."""
    step, state, batch = MODELS[name]()
    # Planner "alpa" does not recompute: on one device nothing is left to decide.
    base = kiwi.api.plan(
        step,
        state,
        batch,
        mesh_shape=(1,),
        memory_budget=NO_LIMIT,
        planner="alpa",
        verify=None,
        donate_argnums=0,
    )
    units = base.execution.units
    graph = remat_graph(units, one_device_strategies(units, base.mesh))
    return [
        _run_cell(name, base, graph, planner, percent, time_limit, compiled)
        for percent in budgets
        for planner in planners
    ]


def _run_cell(
    name: str,
    base: Plan,
    graph: RematGraph,
    planner: str,
    percent: int,
    time_limit: float,
    compiled: bool,
) -> Cell:
    beyond = order_peak_bytes(graph) - graph.resident_bytes
    budget = graph.resident_bytes + beyond * percent // 100
    cell = Cell(name, len(graph.operators), percent, planner, budget / MEBIBYTE)
    started = time.monotonic()
    try:
        result = solve(graph, budget, planner, time_limit)
    except InfeasibleBudgetError:
        return replace(cell, planning_seconds=time.monotonic() - started)
    cell = replace(
        cell,
        overhead_percent=100 * result.overhead,
        predicted_mib=result.peak_bytes / MEBIBYTE,
        planning_seconds=result.seconds,
    )
    if not compiled:
        return cell
    return _compiled(cell, base, graph, result, budget, time_limit)


def _compiled(
    cell: Cell,
    base: Plan,
    graph: RematGraph,
    result: RematResult,
    budget: int,
    time_limit: float,
) -> Cell:
    """Plans again under a lower limit while the compiled peak is over the budget."""
    limit = budget
    for _ in range(MOST_ROUNDS):
        planned = replace(base, execution=replace(base.execution, schedule=result.schedule))
        peak = verify_on_cpu(planned.step).peak_bytes
        cell = replace(
            cell,
            overhead_percent=100 * result.overhead,
            predicted_mib=result.peak_bytes / MEBIBYTE,
            compiled_mib=peak / MEBIBYTE,
        )
        limit -= peak - budget
        if peak <= budget or limit <= 0:
            break
        try:
            result = solve(graph, limit, cell.planner, time_limit)
        except InfeasibleBudgetError:
            break
        seconds = (cell.planning_seconds or 0.0) + result.seconds
        cell = replace(cell, planning_seconds=seconds)
    return cell


def _table(cells: list[Cell]) -> Table:
    columns = ("model", "operators", "budget %", "planner", "overhead %", "budget MiB")
    table = Table(*columns, "predicted", "compiled", "planning s")
    for cell in cells:
        shown = (cell.budget_mib, cell.predicted_mib, cell.compiled_mib, cell.planning_seconds)
        table.add_row(
            cell.model,
            str(cell.operators),
            str(cell.budget_percent),
            cell.planner,
            "none found" if cell.overhead_percent is None else f"{cell.overhead_percent:.2f}",
            *("" if value is None else f"{value:.1f}" for value in shown),
        )
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=["gpt-2", "gpt-4"])
    parser.add_argument(
        "--planners", nargs="+", choices=sorted(PLANNERS), default=["remat", "fastsa", "rotor"]
    )
    parser.add_argument("--budgets", nargs="+", type=int, default=[80, 60, 40], help="per cent")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each plan")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--out", type=Path)
    return parser


if __name__ == "__main__":
    main()
