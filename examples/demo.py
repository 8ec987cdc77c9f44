"""`make demo`: plans a GPT training step for 8 GPUs and TPUs, then trains a small one under a plan.

1. `gpt-13b-4l` on a (2, 4) mesh of V100s, of H100s and of TPUs at several budgets, beside what
   people write by hand. Nothing of that size is executed: where the compiler of the hardware is
   installed, plans and baselines are compiled by it, and its own memory figures are shown.
2. `tiny` trained for 20 steps on 8 virtual CPU devices, under a budget that forces
   recomputation; the losses are those of plain `jax.jit`.
"""

import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kiwi.quiet import start_jax

MESH_SHAPE = (2, 4)

if __name__ == "__main__":  # Before jax is imported: its plugins complain about missing devices.
    start_jax(cpu_devices=math.prod(MESH_SHAPE))

import jax
import numpy as np
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
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
    """One line of the table; `note` stands for what could not be had."""

    name: str
    estimate: Estimate | None
    compiled: CompiledProgram | None
    gap: float | None
    seconds: float
    note: str = ""


def main() -> None:
    """Runs both parts."""
    console = Console()
    started = time.monotonic()
    show_plans(console)
    train_tiny(console)
    console.print(f"Demo finished in {time.monotonic() - started:.0f} s.")


def show_plans(console: Console) -> None:
    """Part 1."""
    config = gpt.SIZES[SIZE]
    console.print(
        f"[bold]1. {SIZE} for 8 GPUs or TPUs, mesh {MESH_SHAPE}[/] ({config.layers} layers, width "
        f"{config.width}, batch {config.batch} x {config.sequence}, {config.dtype})"
    )
    compiled: dict[tuple[str, str], CompiledProgram] = {}
    planned = kiwi.jit(
        gpt.make_train_step(config),
        mesh_shape=MESH_SHAPE,
        donate_argnums=0,
        effort="quick",
    )
    with _progress(console) as progress:
        count = sum(len(budgets) + len(_baselines()) for budgets in BUDGETS.values())
        task = progress.add_task("", total=count)
        for profile in BUDGETS:
            rows = []
            for row in itertools.chain(
                _baseline_rows(progress, profile, compiled), _plan_rows(progress, profile, planned)
            ):
                rows.append(row)
                progress.advance(task)
            progress.console.print(_table(profile, rows))
    console.print(
        "Times (rec.: recomputation) and peak are estimates from public data-sheet figures; "
        "what communicates behind computation does not count in the step; "
        "XLA's is the peak of the compiled program (for GPUs the extra aot-cuda). "
        "Baselines are estimated with the layouts "
        "that XLA propagates between their arguments, remat is jax.checkpoint around each layer; "
        "gap is the proven distance to the best plan.\n"
    )


def _progress(console: Console) -> Progress:
    columns = (SpinnerColumn(), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


def _baselines() -> tuple[Baseline, ...]:
    config = gpt.SIZES[SIZE]
    state = gpt.abstract_state(config)
    megatron = gpt.megatron_specs(state, "x", "y")
    return (
        Baseline(
            "data parallel",
            gpt.make_train_step(config),
            gpt.data_parallel_specs(state, ("x", "y")),
        ),
        Baseline("Megatron", gpt.make_train_step(config), megatron),
        Baseline("Megatron + remat", gpt.make_train_step(config, remat="full"), megatron),
    )


def _baseline_rows(
    progress: Progress, profile: str, compiled: dict[tuple[str, str], CompiledProgram]
) -> Iterator[Row]:
    """`compiled` keeps what was compiled: it depends on the compiler, not on the profile."""
    target = _own_compiler(profile)
    config = gpt.SIZES[SIZE]
    state, batch = gpt.abstract_state(config), gpt.abstract_batch(config)
    for baseline in _baselines():
        progress.update(progress.task_ids[0], description=f"{profile}: {baseline.name}")
        started = time.monotonic()
        estimate = estimate_baseline(baseline, state, batch, mesh_shape=MESH_SHAPE, profile=profile)
        key = str(target), baseline.name
        if target is not None and key not in compiled:
            compiled[key] = compile_baseline(
                baseline, state, batch, mesh_shape=MESH_SHAPE, profile=profile, target=target
            )
        seconds = time.monotonic() - started
        yield Row(baseline.name, estimate, compiled.get(key), None, seconds)


def _own_compiler(profile: str) -> str | None:
    """The compiler of the hardware, where it is installed."""
    hardware = CATALOGUE[profile]
    target, _ = resolved(AUTO, hardware)
    return target if is_own_compiler(target, hardware) else None


def _plan_rows(progress: Progress, profile: str, planned: kiwi.PlannedFunction) -> Iterator[Row]:
    config = gpt.SIZES[SIZE]
    state, batch = gpt.abstract_state(config), gpt.abstract_batch(config)
    for budget in BUDGETS[profile]:
        progress.update(progress.task_ids[0], description=f"{profile}: Kiwi, {budget}")
        started = time.monotonic()
        try:
            plan = planned.with_options(
                memory_budget=budget, profile=profile, verify=_own_compiler(profile)
            ).plan(state, batch)
        except kiwi.errors.KiwiError as error:
            seconds = time.monotonic() - started
            yield Row(f"Kiwi {budget}", None, None, None, seconds, error.what)
            continue
        yield Row(
            f"Kiwi {budget}" if plan.fits else f"Kiwi {budget} (over)",
            plan.estimate,
            plan.compiled,
            plan.solve_result.gap,
            time.monotonic() - started,
        )


def _table(profile: str, rows: list[Row]) -> Table:
    """Narrow enough for a terminal of 80 columns."""
    table = Table(
        title=f"8 x {profile}: milliseconds per step and GiB per device",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("", no_wrap=True)
    for header in ("step", "comp.", "comm.", "resh.", "rec.", "peak", "XLA's", "gap", "took"):
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.name, *_figures(row), f"{row.seconds:.0f} s")
    return table


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


def train_tiny(console: Console) -> None:
    """Part 2."""
    console.print("[bold]2. tiny, trained on 8 virtual CPU devices under a plan[/]")
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
