"""The figures of a plan and of the seconds that it took."""

import importlib.metadata
import os
import platform
from typing import Any

import jax

import kiwi
from kiwi.sizes import format_bytes

_LIBRARIES = ("flax", "equinox", "optax", "dm-haiku", "numpyro", "e3nn-jax", "google-tunix", "qwix")


def versions() -> dict[str, str]:
    """Returns the versions of Kiwi, jax, Python and the installed libraries."""
    installed = {d.name.lower() for d in importlib.metadata.distributions()}
    versions_by_name = {
        "kiwi": kiwi.__version__,
        "jax": jax.__version__,
        "Python": platform.python_version(),
    }
    libraries = [name for name in _LIBRARIES if name in installed]
    return versions_by_name | {name: importlib.metadata.version(name) for name in libraries}


def processor_seconds() -> float:
    """Returns the processor seconds of this process and of compilers that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def line(plan: kiwi.Plan) -> str:
    """Returns the figures of a plan as one line of text."""
    predicted, peak = plan.estimate.peak_bytes, plan.peak_bytes
    gap = plan.solve_result.gap
    return (
        f"budget {format_bytes(plan.memory_budget_bytes)}, predicted {format_bytes(predicted)}, "
        f"peak {format_bytes(peak)} ({predicted / peak:.2f}), "
        f"{plan.estimate.step_seconds * 1e3:.1f} ms a step, "
        f"gap {'unknown' if gap is None else f'{gap:.1%}'}, {len(plan.rounds)} compiled, "
        f"{plan.solve_result.message or 'layers differ'}"
    )


def figures(plan: kiwi.Plan, seconds: float) -> dict[str, Any]:
    """Returns the figures of a plan as plain data. `seconds`: processor seconds of planning."""
    return {
        "budget_bytes": plan.memory_budget_bytes,
        "predicted_bytes": plan.estimate.peak_bytes,
        "peak_bytes": plan.peak_bytes,
        "step_seconds": plan.estimate.step_seconds,
        "gap": plan.solve_result.gap,
        "compiled": len(plan.rounds),
        "processor_seconds": round(seconds),
        "jax": jax.__version__,
    }
