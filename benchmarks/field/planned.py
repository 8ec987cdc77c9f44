"""Plans one program in this process, and returns the predicted and the compiled figures."""

import os
import re
import traceback
from typing import Any

import kiwi
from benchmarks.field.program import PROGRAMS
from kiwi.deviation import deviation

MESH_SHAPE = (2, 4)
_DEVIATIONS = 3


def planned(name: str, profile: str, budget_bytes: int | None) -> dict[str, Any]:
    """Returns a row: the figures of a plan, or the error that ended planning.

    An error that is not one of Kiwi's own is a crash, for which `kiwi plan` would exit with code
    70.
    """
    program = PROGRAMS[name]
    step, _ = program.make()
    before = cpu_seconds()
    try:
        plan = kiwi.plan(
            step,
            *program.make_args(),
            mesh_shape=MESH_SHAPE,
            profile=profile,
            memory_budget=budget_bytes,
            donate_argnums=program.donated,
            plan_cache=False,
        )
        row = _figures(plan)
    except kiwi.errors.KiwiError as error:
        row = _refusal(error)
    except Exception as error:
        row = _crash(error)
    return {**row, "cpu_seconds": round(cpu_seconds() - before, 1), "budget_bytes": budget_bytes}


def _figures(plan: Any) -> dict[str, Any]:
    compiled = plan.compiled
    figures = {
        "planned_step_seconds": plan.estimate.step_seconds,
        "planned_peak_bytes": plan.estimate.peak_bytes,
        "compiled_step_seconds": compiled.step_seconds,
        "compiled_peak_bytes": compiled.peak_bytes,
        "programs": len(plan.rounds),
        "operators": len(plan.decisions),
        "recomputed": plan.residency_counts()["recompute"],
        "fits": plan.fits,
        "gap": plan.solve_result.gap,
        "exit": 0,
    }
    return {**figures, "deviations": _deviations(plan)}


def _deviations(plan: Any) -> list[str]:
    """Returns sentences about the kernels whose compiled seconds differ most from the planned
    ones."""
    deviations = deviation(plan)
    kinds = dict.fromkeys(kernel.what for kernel in deviations.kernels)
    return [_sentence(kernel) for kind in kinds for kernel in deviations.of(kind)[:_DEVIATIONS]]


def _sentence(kernel: Any) -> str:
    source = re.sub(r"^\S*/(?=[^/]+\.py)", "", kernel.source_line)
    shape = "x".join(map(str, kernel.shape))
    return (
        f"{kernel.what} {kernel.name} [{shape}] of {source}: "
        f"{kernel.predicted:.4g} planned, {kernel.compiled:.4g} compiled"
    )


def _refusal(error: kiwi.errors.KiwiError) -> dict[str, Any]:
    row: dict[str, Any] = {"error": type(error).__name__, "what": error.what, "exit": 1}
    least = getattr(error, "least_peak_bytes", None)
    if least is not None:
        row["least_peak_bytes"] = least
    plan = getattr(error, "plan", None)
    if plan is not None and plan.compiled is not None:
        row["least_compiled_peak_bytes"] = plan.compiled.peak_bytes
    return row


def _crash(error: Exception) -> dict[str, Any]:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return {"error": type(error).__name__, "what": f"{str(error)[:300]} ({where})", "exit": 70}


def cpu_seconds() -> float:
    """Returns the processor seconds of this process and of the processes that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
