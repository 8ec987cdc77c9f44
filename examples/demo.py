"""`make demo`: plans a GPT training step for 8 GPUs and TPUs, then trains a small one under a plan.

1. Plans `gpt-13b-4l` on a (2, 4) mesh of V100s, of H100s and of TPUs at several budgets, beside
   hand-written baselines. Nothing of that size is executed. Where the compiler of the hardware is
   installed, it compiles plans and baselines, and the table shows its memory figures.
2. Trains `tiny` for 20 steps on 8 virtual CPU devices, under a budget that forces recomputation.
   The losses are those of plain `jax.jit`.
"""

import functools
import io
import math
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from kiwi.quiet import start_jax

MESH_SHAPE = (2, 4)

if __name__ == "__main__":  # Before jax is imported: its plugins complain about missing devices.
    start_jax(cpu_devices=math.prod(MESH_SHAPE))

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import kiwi
from examples import gpt
from examples.baselines import Baseline, compile_baseline, estimate_baseline
from kiwi.mesh import CATALOGUE
from kiwi.plans.estimate import Estimate
from kiwi.targets.registry import is_own_compiler
from kiwi.xla.compilers import AUTO, resolved
from kiwi.xla.read.compiled_program import CompiledProgram

BUDGETS = {
    "v100-sxm2": ("14GiB", "9GiB", "7GiB"),
    "h100-sxm": ("14GiB", "9GiB", "7GiB"),
    "v5e": ("14GiB", "7GiB"),
}
SIZE = "gpt-13b-4l"
STEPS = 20
GIB = 2**30


@dataclass(frozen=True)
class Row:
    """One line of the table. `note` replaces figures that are not available."""

    name: str
    estimate: Estimate | None
    compiled: CompiledProgram | None
    gap: float | None
    seconds: float
    note: str = ""


def main() -> None:
    """Runs both parts. GPUs and TPUs have one process each, which traces the step once and reuses
    what the first plan's program taught in the next plans."""
    console = Console(highlight=False)
    started = time.monotonic()
    with _process() as for_gpus, _process() as for_tpus:
        rows = {
            asked: (for_tpus if asked.profile == "v5e" else for_gpus).submit(_row, asked)
            for asked in _asked()
        }
        trained = for_gpus.submit(_trained, console.width)
        show_plans(console, rows)
        console.print("[bold]2. tiny, trained on 8 virtual CPU devices under a plan[/]")
        console.print(trained.result(), markup=False, soft_wrap=True)
    console.print(f"Demo finished in {time.monotonic() - started:.0f} s.")


def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        1,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=start_jax,
        initargs=(math.prod(MESH_SHAPE),),
    )


def show_plans(console: Console, rows: Mapping["Asked", Future[Row]]) -> None:
    """Prints part 1. Rows are printed in order, each as soon as it is there."""
    config = gpt.SIZES[SIZE]
    console.print(
        f"[bold]1. {SIZE} for 8 GPUs or TPUs, mesh {MESH_SHAPE}[/] ({config.layers} layers, width "
        f"{config.width}, batch {config.batch} x {config.sequence}, {config.dtype})"
    )
    for profile in BUDGETS:
        console.print(_header(profile))
        for asked in _asked():
            if asked.profile == profile:
                console.print(_line(rows[asked].result()))
        console.print()
    console.print(
        "Times (rec.: recomputation) and peak are estimates from public data-sheet figures; "
        "what communicates behind computation does not count in the step; "
        "XLA's is the peak of the compiled program (for GPUs the extra aot-cuda). "
        "Baselines are estimated with the layouts "
        "that XLA propagates between their arguments, remat is jax.checkpoint around each layer; "
        "gap is the proven distance to the best plan by these prices. Under a further budget "
        "counts what the program of the first one taught (corrections=). Rows took their "
        "seconds in two processes beside each other.\n"
    )


@dataclass(frozen=True)
class Asked:
    """A row to compute: a baseline, by its index, or a plan under a budget."""

    profile: str
    baseline: int | None = None
    budget: str = ""


def _asked() -> tuple[Asked, ...]:
    """Returns all rows to compute, in the order of the table."""
    return tuple(
        asked
        for profile, budgets in BUDGETS.items()
        for asked in (
            *(Asked(profile, place) for place in range(len(_baselines()))),
            *(Asked(profile, budget=budget) for budget in budgets),
        )
    )


def _row(asked: Asked) -> Row:
    """Computes a row in this process."""
    if asked.baseline is None:
        return _plan_row(asked.profile, asked.budget)
    return _baseline_row(asked.profile, _baselines()[asked.baseline])


@functools.cache
def _baselines() -> tuple[Baseline, ...]:
    config = gpt.SIZES[SIZE]
    state = gpt.abstract_state(config)
    megatron_shardings = gpt.megatron_specs(state, "x", "y")
    return (
        Baseline(
            "data parallel",
            gpt.make_train_step(config),
            gpt.data_parallel_specs(state, ("x", "y")),
        ),
        Baseline("Megatron", gpt.make_train_step(config), megatron_shardings),
        Baseline("Megatron + remat", gpt.make_train_step(config, remat="full"), megatron_shardings),
    )


def _baseline_row(profile: str, baseline: Baseline) -> Row:
    target = _own_compiler(profile)
    config = gpt.SIZES[SIZE]
    arguments = gpt.abstract_state(config), gpt.abstract_batch(config)
    started = time.monotonic()
    estimate = estimate_baseline(baseline, *arguments, mesh_shape=MESH_SHAPE, profile=profile)
    compiled = None
    if target is not None:
        compiled = compile_baseline(
            baseline, *arguments, mesh_shape=MESH_SHAPE, profile=profile, target=target
        )
    return Row(baseline.name, estimate, compiled, None, time.monotonic() - started)


def _own_compiler(profile: str) -> str | None:
    """Returns the name of the hardware's compiler; None if that compiler is not installed."""
    hardware = CATALOGUE[profile]
    target, _ = resolved(AUTO, hardware)
    return target if is_own_compiler(target, hardware) else None


@functools.cache
def _planned() -> kiwi.PlannedFunction:
    """Returns the step to plan. A process traces it once for all budgets of one target."""
    return kiwi.jit(
        gpt.make_train_step(gpt.SIZES[SIZE]),
        mesh_shape=MESH_SHAPE,
        donate_argnums=0,
        effort="quick",
    )


@functools.cache
def _plan(profile: str, budget: str) -> kiwi.Plan:
    """Returns a plan. Corrections from the program of the first budget count under the others."""
    config, first = gpt.SIZES[SIZE], BUDGETS[profile][0]
    planned = _planned().with_options(
        memory_budget=budget, profile=profile, verify=_own_compiler(profile)
    )
    if budget != first:
        planned = planned.with_options(corrections=_plan(profile, first).corrections)
    return planned.plan(gpt.abstract_state(config), gpt.abstract_batch(config))


def _plan_row(profile: str, budget: str) -> Row:
    started = time.monotonic()
    try:
        plan = _plan(profile, budget)
    except kiwi.errors.KiwiError as error:
        return Row(f"Kiwi {budget}", None, None, None, time.monotonic() - started, error.what)
    return Row(
        f"Kiwi {budget}" if plan.fits else f"Kiwi {budget} (over)",
        plan.estimate,
        plan.compiled,
        plan.solve_result.gap,
        time.monotonic() - started,
    )


def _header(profile: str) -> str:
    """Returns the header of the table, narrow enough for a terminal of 80 columns."""
    headers = ("step", "comp.", "comm.", "resh.", "rec.", "peak", "XLA's", "gap", "took")
    title = f"8 x {profile}: milliseconds per step and GiB per device"
    return f"[italic]{title}[/]\n[bold]{_columns('', headers)}[/]"


def _line(row: Row) -> str:
    return _columns(row.name, (*_figures(row), f"{row.seconds:.0f} s"))


def _columns(name: str, figures: Sequence[str]) -> str:
    return f"{name:<17}" + "".join(f"{figure:>7}" for figure in figures)


def _figures(row: Row) -> list[str]:
    if row.estimate is None:
        return [row.note, *[""] * 7]
    e = row.estimate
    times = (
        e.step_seconds,
        e.compute_seconds,
        e.communication_seconds,
        e.resharding_seconds,
        e.recompute_seconds,
    )
    return [
        *(f"{1e3 * seconds:.1f}" if seconds < 1 else f"{1e3 * seconds:.0f}" for seconds in times),
        f"{e.peak_bytes / GIB:.2f}",
        "-" if row.compiled is None else f"{row.compiled.peak_bytes / GIB:.2f}",
        "" if row.gap is None else f"{row.gap:.1%}",
    ]


def _trained(width: int) -> str:
    """Returns part 2 as text with `width` columns."""
    shown = io.StringIO()
    train_tiny(Console(file=shown, width=width, highlight=False))
    return shown.getvalue()


def train_tiny(console: Console) -> None:
    """Trains with and without a plan, and compares the losses."""
    config = gpt.SIZES["tiny"]
    train_step = gpt.make_train_step(config)
    state, batch = gpt.make_state(config), gpt.make_batch(config)
    unlimited = kiwi.jit(
        train_step, mesh_shape=MESH_SHAPE, profile="cpu", donate_argnums=0, effort="quick"
    )
    free = unlimited.plan(state, batch)
    assert free.compiled is not None
    budget = int(0.75 * free.compiled.peak_bytes)
    planned = unlimited.with_options(memory_budget=budget)
    plan = planned.plan(state, batch)
    console.print(
        f"Peak without a budget {free.compiled.peak_bytes / 2**20:.2f} MiB; budget "
        f"{budget / 2**20:.2f} MiB. The plan's summary:\n"
    )
    console.print(str(plan), highlight=False, markup=False, soft_wrap=True)
    plain_losses = _losses(jax.jit(train_step), state, batch)
    planned_losses = _losses(planned, jax.tree.map(lambda x: x.copy(), state), batch)
    console.print(_loss_table(plain_losses, planned_losses))
    difference = np.max(np.abs(np.array(plain_losses) / np.array(planned_losses) - 1))
    np.testing.assert_allclose(planned_losses, plain_losses, rtol=1e-4)
    console.print(f"Losses agree over {STEPS} steps; largest relative difference {difference:.1e}.")


def _losses(step: Any, state: Any, batch: Any) -> list[float]:
    losses = []
    for _ in range(STEPS):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    return losses


def _loss_table(plain: list[float], planned: list[float]) -> Table:
    table = Table("step", "plain jax.jit", "planned")
    for step in (0, 1, 4, 9, 14, 19):
        table.add_row(str(step + 1), f"{plain[step]:.6f}", f"{planned[step]:.6f}")
    return table


if __name__ == "__main__":
    main()
