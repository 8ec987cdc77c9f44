"""Planners on real JAX training steps on one device: overhead, compiled peak, planning time.

    python -m benchmarks.remat.jax_models --models gpt-4 gpt-12 --planners remat rotor

Each step is traced once. A budget is a share of the memory that the given order needs beyond the
memory that is always held (arguments, results, and what XLA holds from the start). No schedule
needs less than the largest working set. A budget is therefore at least a quarter of the share of
the way from the largest working set to the peak of the given order: 40 % is at least 10 % of that
way.

XLA:CPU compiles the emitted schedules. While the compiled peak is over the budget, other orders are
compiled, and the step is planned again under a lower limit, as `kiwi.plan` does
(`kiwi.campaign.limit_search`). The first figures of a row belong to the first schedule. The others
belong to the fastest schedule whose compiled peak is within the budget, or to the nearest one.
Models are scaled down so that they compile quickly. Planning depends on their structure and number
of layers, which are unchanged.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console

import kiwi.api
from benchmarks.remat.row import (
    MEBIBYTE,
    WIDTH,
    ClosedLoop,
    Results,
    Row,
    add_common_options,
    command_of,
    solved,
    table,
)
from examples import convnet, encoder, encoder_decoder, gpt, unet, vit
from kiwi.campaign import shares
from kiwi.campaign.tools import Tools
from kiwi.errors import BudgetNotMetError, KiwiError
from kiwi.literature.planners.one_device import OneDevice, OneDevicePlanner
from kiwi.literature.remat import (
    PLANNERS,
    RematGraph,
    RematResult,
    Search,
    largest_working_set,
    order_peak_bytes,
)
from kiwi.options import Settings
from kiwi.planners.registry import planner_named
from kiwi.plans.plan import Plan

NO_LIMIT, TARGET = "100TiB", "cpu"
RESULTS = Path(__file__).parent / "results" / "jax_models.json"
FLOOR_DIVISOR = 4
MOST_OPERATORS = {"checkmate": 150, "checkmate-lp": 150, "rk-checkmate": 150, "moccasin": 600}
"""The largest graphs that these planners get. For larger graphs, building their programs alone
takes minutes."""


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


def _sized(module: Any, size: str = "tiny") -> tuple[Any, ...]:
    config = module.SIZES[size]
    state, batch = module.abstract_state(config), module.abstract_batch(config)
    return module.make_train_step(config), state, batch


MODELS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "mlp-12": lambda: _mlp(12),
    **{f"gpt-{n}": (lambda n=n: _gpt(n)) for n in (2, 4, 12, 24, 48, 96)},
    "convnet": lambda: _sized(convnet),
    "encoder": lambda: _sized(encoder),
    "encoder-decoder": lambda: _sized(encoder_decoder),
    "unet": lambda: _sized(unet),
    "vit": lambda: _sized(vit),
    "convnet-cifar": lambda: _sized(convnet, "cifar"),
    "unet-4s": lambda: _sized(unet, "unet-4s"),
}
"""The models by name. The last two are of full size, for planning without compiling: costs as in
training."""


def main() -> None:
    """Makes the missing rows, then prints the table."""
    options = _parser().parse_args()
    command = command_of("benchmarks.remat.jax_models")
    results = Results(options.out, command, list(MODELS))
    rows: list[Row] = []
    for name in options.models:
        wanted = [
            Row(name, 0, percent, planner, options.time_limit, seed)
            for percent in options.budgets
            for planner in options.planners
            for seed in options.seeds
        ]
        rows += results.make(wanted, _Maker(name, options.compiled).row)
    Console(width=WIDTH).print(table(rows))


class _Maker:
    """Makes the rows of one model, which is traced when the first row is made."""

    def __init__(self, name: str, compiled: list[str]) -> None:
        self._name, self._compiled = name, compiled
        self._traced: OneDevice | None = None

    def row(self, row: Row) -> Row:
        """Returns the row with all figures."""
        if self._traced is None:
            self._traced = trace_model(self._name)
        return make_row(self._traced, row, row.planner in self._compiled)


def trace_model(name: str) -> OneDevice:
    """Returns the model traced, and planned without recomputation. On one device no other decision
    is left."""
    step, state, batch = MODELS[name]()
    planned = kiwi.api.jit(
        step,
        mesh_shape=(1,),
        memory_budget=NO_LIMIT,
        planner="keep-all",
        verify=TARGET,
        donate_argnums=0,
    )
    settings = planned.settings
    to_plan = planned.traced(state, batch)
    return _one_device("keep-all").to_schedule(to_plan, settings.memory_budget_bytes, settings)


def _one_device(name: str) -> OneDevicePlanner:
    planner = planner_named(name)
    assert isinstance(planner, OneDevicePlanner)
    return planner


def make_row(traced: OneDevice, row: Row, is_compiled: bool) -> Row:
    """Returns the row of one planner under one budget."""
    graph = traced.graph
    budget_bytes, raised_percent = budget_of(graph, row.budget_percent, traced.pointer_bytes)
    count = len(graph.operators)
    row = replace(
        row,
        operators=count,
        budget_mib=budget_bytes / MEBIBYTE,
        raised_percent=raised_percent,
    )
    if count > MOST_OPERATORS.get(row.planner, count):
        return replace(row, note=f"not for over {MOST_OPERATORS[row.planner]} operators")
    if is_compiled:
        return _compiled_row(traced, row, budget_bytes)
    return solved(row, graph, budget_bytes)[0]


def budget_of(graph: RematGraph, percent: int, pointer_bytes: int = 0) -> tuple[int, float | None]:
    """Returns a budget in bytes, and the share that it is if that is more than `percent`, otherwise
    None.

    Shares refer to the memory that the step itself needs. `pointer_bytes`, the part of the resident
    bytes that XLA holds for its tuples, does not count.
    """
    peak_bytes = order_peak_bytes(graph) - pointer_bytes
    resident_bytes = graph.resident_bytes - pointer_bytes
    least_bytes = largest_working_set(graph).size_bytes - pointer_bytes
    beyond = peak_bytes - resident_bytes
    share_bytes = resident_bytes + beyond * percent // 100
    floor_bytes = least_bytes + (peak_bytes - least_bytes) * percent // (100 * FLOOR_DIVISOR)
    if floor_bytes <= share_bytes:
        return share_bytes, None
    return floor_bytes, 100 * (floor_bytes - resident_bytes) / beyond


def _compiled_row(traced: OneDevice, row: Row, budget_bytes: int) -> Row:
    """Returns the row with the figures of the closed loop."""
    settings = Settings(
        mesh=traced.base.mesh,
        memory_budget_bytes=budget_bytes,
        planner=row.planner,
        time_limit_seconds=shares.SCHEDULE_ROUNDS * row.time_limit_seconds,
        verify=TARGET,
        solver="auto",
        seed=row.seed,
        gap=0.0,
        respect_user_checkpoint=False,
    )
    made: list[Row] = []
    search = Search(traced.graph, row.planner, row.time_limit_seconds)

    def find(limit_bytes: int, seed: int) -> RematResult:
        found_row, result = solved(replace(row, seed=seed), traced.graph, limit_bytes, search)
        made.append(replace(found_row, seed=row.seed))
        if isinstance(result, KiwiError):
            raise result
        return result

    try:
        planner = _one_device(row.planner)
        plan = planner.tightened(traced, find, budget_bytes, Tools.of(settings))
    except BudgetNotMetError as error:
        assert isinstance(error.plan, Plan)
        plan = error.plan
    except KiwiError:  # No schedule was found in the first round.
        return made[0]
    return replace(made[0], closed_loop=_closed_loop(plan, made))


def _closed_loop(plan: Plan, made: list[Row]) -> ClosedLoop:
    """Returns the figures of the closed loop. `made`: the rows of the schedules of all rounds."""
    result = plan.solve_result
    assert plan.compiled is not None and result.objective is not None
    return ClosedLoop(
        met=plan.fits,
        rounds=sum(row.increase_percent is not None for row in made),
        increase_percent=100 * (result.objective / result.bound - 1),
        predicted_mib=plan.estimate.peak_bytes / MEBIBYTE,
        compiled_mib=plan.compiled.peak_bytes / MEBIBYTE,
        seconds=sum(row.seconds or 0.0 for row in made),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_common_options(parser, sorted(PLANNERS))
    parser.set_defaults(out=RESULTS)
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=["gpt-2", "gpt-4"])
    parser.add_argument("--budgets", nargs="+", type=int, default=[80, 60, 40], help="per cent")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each schedule")
    parser.add_argument(
        "--compiled", nargs="*", default=sorted(PLANNERS), help="planners that are also compiled"
    )
    return parser


if __name__ == "__main__":
    main()
