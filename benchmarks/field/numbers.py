"""Compares a planned step's numbers with those of `jax.jit`, on CPU devices and small arguments."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kiwi
from benchmarks.field.planned import MESH_SHAPE, cpu_seconds
from benchmarks.field.program import PROGRAMS

FLOOR = 1e-5
"""Root mean squares below this are rounding errors. Relative differences divide by no less."""


def compared(name: str, share: float | None) -> dict[str, Any]:
    """Returns the row of a program: the largest relative difference of any result, or the error.

    `share`: the budget as a part of the free plan's compiled peak; None for no budget.
    """
    program = PROGRAMS[name]
    step, _ = program.make(small=True)
    args = program.draw_args()
    plain_results = jax.jit(step)(*args)
    before = cpu_seconds()
    try:
        planned = _planned(step, None)
        if share is not None:
            compiled = planned.plan(*args).compiled
            assert compiled is not None
            planned = _planned(step, int(share * compiled.peak_bytes))
        planned_results = planned(*args)
        row: dict[str, Any] = {"difference": difference(planned_results, plain_results), "exit": 0}
    except kiwi.errors.KiwiError as error:
        row = {"error": type(error).__name__, "what": error.what, "exit": 1}
    except Exception as error:
        row = {"error": type(error).__name__, "what": str(error)[:300], "exit": 70}
    return {**row, "cpu_seconds": round(cpu_seconds() - before, 1)}


def _planned(step: Any, budget_bytes: int | None) -> Any:
    return kiwi.jit(
        step, mesh_shape=MESH_SHAPE, profile="cpu", memory_budget=budget_bytes, plan_cache=False
    )


def difference(got: Any, wanted: Any) -> float:
    """Returns the largest relative difference of a result: the root mean square of the differences
    over the root mean square of the wanted values."""
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True)
    return max(_of_leaf(a, b) for a, b in pairs)


def _of_leaf(got: Any, wanted: Any) -> float:
    if jnp.issubdtype(wanted.dtype, jax.dtypes.prng_key):
        got, wanted = jax.random.key_data(got), jax.random.key_data(wanted)
    kind = np.complex128 if jnp.iscomplexobj(wanted) else np.float64
    got, wanted = np.asarray(got).astype(kind), np.asarray(wanted).astype(kind)
    if not np.isfinite(wanted).all():
        return float("nan")
    scale = max(float(np.sqrt(np.mean(np.abs(wanted) ** 2))), FLOOR)
    return float(np.sqrt(np.mean(np.abs(got - wanted) ** 2))) / scale
