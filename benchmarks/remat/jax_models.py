"""Planners on real JAX training steps on one device: overhead, compiled peak, planning time.

    python -m benchmarks.remat.jax_models --models gpt-4 gpt-12 --planners remat rotor

Each step is traced once. Budgets are shares of what the given order needs beyond what is always
there (arguments, results, what XLA holds from the start), but at least a quarter of the share of
the way from the largest working set, below which there is no schedule, to the peak of the given
order: 40 % is 10 % of that way at least.

Schedules are emitted and compiled by XLA:CPU; while the compiled peak is over the budget, other
orders are compiled, and it is planned again under a lower limit, as `kiwi.plan` does
(`kiwi.campaign.limit_search`). The first figures of a row are those of the first schedule, the
others those of the fastest schedule whose compiled peak is within the budget, or of the nearest
one. Models are scaled down so that compiling is quick: their structure and number of layers are
what planning depends on.
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
"""Larger graphs are not given to these: building their programs alone takes minutes."""


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
"""The last two are of full size, for planning alone: costs as in training."""


def main() -> None:
    """Makes the rows that are missing, then prints the table."""
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
    """Makes the rows of one model, which is traced when the first is made."""

    def __init__(self, name: str, compiled: list[str]) -> None:
        self._name, self._compiled = name, compiled
        self._traced: OneDevice | None = None

    def row(self, row: Row) -> Row:
        """The row with all figures."""
        if self._traced is None:
            self._traced = trace_model(self._name)
        return make_row(self._traced, row, row.planner in self._compiled)


def trace_model(name: str) -> OneDevice:
    """Traces and plans without recomputation: on one device nothing else is left to decide."""
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
    found = planner_named(name)
    assert isinstance(found, OneDevicePlanner)
    return found


def make_row(traced: OneDevice, row: Row, is_compiled: bool) -> Row:
    """One planner under one budget."""
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
    """A budget in bytes, and the share that it is if it is more than `percent`.

    Shares are of what the step needs by itself, without what XLA holds for its tuples:
    `pointer_bytes` of what is resident in the graph.
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
    """With what the closed loop makes of it."""
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
        found, result = solved(replace(row, seed=seed), traced.graph, limit_bytes, search)
        made.append(replace(found, seed=row.seed))
        if isinstance(result, KiwiError):
            raise result
        return result

    try:
        planner = _one_device(row.planner)
        plan = planner.tightened(traced, find, budget_bytes, Tools.of(settings))
    except BudgetNotMetError as error:
        assert isinstance(error.plan, Plan)
        plan = error.plan
    except KiwiError:  # the first schedule was not found
        return made[0]
    return replace(made[0], closed_loop=_closed_loop(plan, made))


def _closed_loop(plan: Plan, made: list[Row]) -> ClosedLoop:
    """What was reached; `made` are the schedules of all rounds."""
    found = plan.solve_result
    assert plan.compiled is not None and found.objective is not None
    return ClosedLoop(
        met=plan.fits,
        rounds=sum(row.increase_percent is not None for row in made),
        increase_percent=100 * (found.objective / found.bound - 1),
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
