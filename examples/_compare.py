"""Trains an example with and without a plan under several budgets, and compares the losses.

A budget is a share of the compiled peak of the plan without a limit. Where no compiled plan meets
the budget, the smallest budget that a plan is known to meet replaces it.
"""

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import kiwi
from kiwi.errors import BudgetNotMetError, InfeasibleBudgetError
from kiwi.sizes import format_bytes

EXAMPLES = (
    "flax_nnx_gpt",
    "flax_linen_gpt",
    "equinox_vit",
    "accumulation",
    "mixed_precision",
    "moe_all_to_all",
    "encoder_decoder",
)
SHARES = (1.0, 0.8, 0.6)
MESH_SHAPE = (2, 4)
TIME_LIMIT_SECONDS = 5.0
TOLERANCE = 1e-3
"""The largest relative difference of losses. Adam amplifies rounding errors where gradients
vanish."""


@dataclass(frozen=True)
class Row:
    """One example under one budget.

    - `peak_bytes`: the compiled peak of the plan, per device.
    - `recomputed`: the number of operators that run twice.
    - `losses`, `plain_losses`: the loss of each step under the plan, and without a plan.
    """

    example: str
    share: float
    budget_bytes: int
    peak_bytes: int
    estimated_bytes: int
    operators: int
    recomputed: int
    losses: tuple[float, ...]
    plain_losses: tuple[float, ...]
    notes: tuple[str, ...]

    @property
    def difference(self) -> float:
        """The largest relative difference of a loss."""
        pairs = zip(self.losses, self.plain_losses, strict=True)
        return max(abs(a - b) / abs(b) for a, b in pairs)


@dataclass(frozen=True, eq=False)
class Training:
    """An example at one size, ready to run on a mesh of this process's devices."""

    name: str
    step: Callable[..., Any]
    make_state: Callable[[], Any]
    batch: Any
    mesh: jax.sharding.Mesh

    @classmethod
    def of(
        cls,
        name: str,
        size: str = "tiny",
        mesh_shape: Sequence[int] = MESH_SHAPE,
        module: Any = None,
    ) -> "Training":
        """Returns the example with this name, or the example that `module` defines in the same
        form."""
        module = module or importlib.import_module(f"examples.{name}")
        config = module.SIZES[size]
        mesh = _mesh(mesh_shape)
        takes_mesh = "mesh" in inspect.signature(module.make_train_step).parameters
        step = module.make_train_step(config, **({"mesh": mesh} if takes_mesh else {}))
        return cls(name, step, lambda: module.make_state(config), module.make_batch(config), mesh)

    def plain_losses(self, steps: int) -> tuple[float, ...]:
        """Returns the losses of the first steps under `jax.jit`."""
        return self._losses(jax.jit(self.step), steps)

    def rows(self, shares: Sequence[float], steps: int) -> list[Row]:
        """Plans and runs the example for each budget."""
        plain = self.plain_losses(steps)
        planned = kiwi.jit(
            self.step, mesh=self.mesh, donate_argnums=0, time_limit_seconds=TIME_LIMIT_SECONDS
        )
        free = planned.plan(self.make_state(), self.batch)
        rows = []
        for share in shares:
            budget = int(share * free.peak_bytes)
            step = planned if share == 1 else self._within(planned, budget)
            plan = step.plan(self.make_state(), self.batch)
            rows.append(self._row(plan, share, plain, self._losses(step, steps), free.peak_bytes))
        return rows

    def _within(self, planned: kiwi.PlannedFunction, budget: int) -> kiwi.PlannedFunction:
        """Returns the function under a budget, or under the smallest budget above it that an error
        names."""
        for _ in range(3):
            limited = planned.with_options(memory_budget=budget)
            try:
                limited.plan(self.make_state(), self.batch)
                return limited
            except (BudgetNotMetError, InfeasibleBudgetError) as error:
                if error.least_peak_bytes is None:
                    raise
                budget = int(1.02 * error.least_peak_bytes)
        raise AssertionError(f"{self.name}: the budgets that errors name are not met")

    def _row(self, plan: kiwi.Plan, share: float, plain: Any, losses: Any, free_bytes: int) -> Row:
        counts = plan.residency_counts()
        return Row(
            self.name,
            share,
            min(plan.memory_budget_bytes, free_bytes),
            plan.peak_bytes,
            plan.estimate.peak_bytes,
            len(plan.decisions),
            counts["recompute"],
            losses,
            plain,
            tuple(map(str, plan.notes)),
        )

    def _losses(self, step: Callable[..., Any], steps: int) -> tuple[float, ...]:
        state, losses = self.make_state(), []
        for _ in range(steps):
            state, metrics = step(state, self.batch)
            losses.append(float(metrics["loss"]))
        return tuple(losses)


def _mesh(shape: Sequence[int]) -> jax.sharding.Mesh:
    devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
    names = ("x", "y", "z")[: len(shape)]
    return jax.sharding.Mesh(devices, names, axis_types=(jax.sharding.AxisType.Auto,) * len(shape))


def main(name: str, steps: int = 5) -> None:
    """Compares one example on 8 virtual CPU devices and prints a table."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    rows = Training.of(name).rows(SHARES, steps)
    table = Table("budget", "compiled peak", "recomputed", "loss", "without a plan", title=name)
    for row in rows:
        table.add_row(
            format_bytes(row.budget_bytes),
            format_bytes(row.peak_bytes),
            f"{row.recomputed} of {row.operators}",
            f"{row.losses[-1]:.5f}",
            f"{row.plain_losses[-1]:.5f}",
        )
    console = Console()
    console.print(table)
    for note in dict.fromkeys(note for row in rows for note in row.notes):
        console.print(note)


def row_of(data: Mapping[str, Any]) -> Row:
    """Returns the row that `as_json` stores as `data`."""
    fields: dict[str, Any] = {field.name: data[field.name] for field in dataclasses.fields(Row)}
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Row(**{**fields, **lists})


def as_json(row: Row) -> dict[str, Any]:
    """Returns a row as plain data."""
    return {**dataclasses.asdict(row), "difference": row.difference}
