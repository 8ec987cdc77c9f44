"""Measures one row: plans a drawn step, or prices a hand-written one, and compiles it."""

import os
import re
import time
from collections.abc import Mapping
from typing import Any

import kiwi
from benchmarks.fidelity.measure import unpredicted_seconds
from benchmarks.sampled.by_hand import baseline
from benchmarks.sampled.models import DrawnModel
from benchmarks.sampled.rows import Key, Row
from examples.baselines import baseline_step, estimate_baseline
from kiwi.deviation import Deviation, KernelDeviation, deviation
from kiwi.mesh import DeviceMesh
from kiwi.plans.estimate import Estimate
from kiwi.xla.compilers import compile_for, of_platform, overlapping_compiles
from kiwi.xla.read.collectives import AxisUse
from kiwi.xla.read.compiled_program import CompiledProgram

_KERNELS = 6
"""The number of deviating kernels of each kind that a row keeps."""


class Measuring:
    """Makes the rows of one model. The step is traced once for all meshes and budgets."""

    def __init__(self, model: DrawnModel, effort: str) -> None:
        self._model, self._effort = model, effort
        self._planned = kiwi.jit(model.make_step(), mesh_shape=(1,), donate_argnums=0)

    def row(self, key: Key, known: Mapping[str, Row]) -> Row:
        """Returns the row of a key. `known`: the recorded rows of the model, because a budget is a
        share of the free plan's compiled peak."""
        started, cpu_started = time.monotonic(), _cpu_seconds()
        try:
            result = self._by_hand(key) if key.is_by_hand else self._plan(key, known)
        except kiwi.errors.KiwiError as error:
            result = self._failure(key, error)
        return {
            **result,
            "cpu_seconds": round(_cpu_seconds() - cpu_started, 1),
            "wall_seconds": round(time.monotonic() - started, 1),
        }

    def _plan(self, key: Key, known: Mapping[str, Row]) -> Row:
        budget: int | str | None = None
        if key.share is not None:
            free = known.get(str(Key(key.seed, key.index, key.profile, key.mesh, "free")), {})
            if "compiled_peak_bytes" not in free:
                return {"error": "NoFreePlan", "what": "There is no free plan to take a share of."}
            budget = int(key.share * free["compiled_peak_bytes"])
        planned = self._planned.with_options(
            mesh_shape=key.mesh_shape,
            memory_budget=budget,
            profile=key.profile,
            verify=_target(key.profile),
            effort=self._effort,
            plan_cache=False,
        )
        plan = planned.plan(self._model.state, self._model.batch)
        deviations = deviation(plan)
        rounds = plan.rounds
        return {
            "budget_bytes": budget,
            **_figures(plan.estimate, plan.compiled),
            "first_peak_bytes": rounds[0].compiled_peak_bytes if rounds else None,
            "first_predicted_peak_bytes": rounds[0].predicted_peak_bytes if rounds else None,
            "rounds": len(rounds),
            "fits": plan.fits,
            "gap": plan.solve_result.gap,
            "recomputed_units": plan.residency_counts()["recompute"],
            "units": len(plan.decisions),
            "kernels": _kernels(deviations),
        }

    def _by_hand(self, key: Key) -> Row:
        target = _target(key.profile)
        hand = baseline(self._model, key.mesh_shape, key.variant)
        arguments = self._model.state, self._model.batch
        estimate = estimate_baseline(
            hand, *arguments, mesh_shape=key.mesh_shape, profile=key.profile
        )
        mesh = DeviceMesh.create(key.mesh_shape, key.profile)
        step = baseline_step(hand, *arguments, mesh)
        begun = [begin(step) for begin in overlapping_compiles(target)]
        programs = [program() for program in begun] or [compile_for(target, step)]
        fastest = min(programs, key=lambda program: program.step_seconds or 0.0)
        row = _figures(estimate, fastest)
        return {**row, "unpredicted_seconds": unpredicted_seconds(estimate, fastest, mesh)}

    def _failure(self, key: Key, error: kiwi.errors.KiwiError) -> Row:
        result: Row = {"error": type(error).__name__, "what": error.what}
        least = getattr(error, "least_peak_bytes", None)
        if least is not None:
            result["least_peak_bytes"] = least
        if isinstance(error, kiwi.errors.BudgetNotMetError):
            plan = error.plan
            return {
                **result,
                **_figures(plan.estimate, plan.compiled),
                "rounds": len(plan.rounds),
                "fits": False,
            }
        if isinstance(error, kiwi.errors.CompileCheckError) and not key.is_by_hand:
            result["cause"] = error.cause
            result["plain_step"] = self._plain_outcome(key)
        return result

    def _plain_outcome(self, key: Key) -> str:
        """Returns whether XLA compiles the plain step under data parallelism. If it does not, XLA
        itself cannot compile the step."""
        hand = baseline(self._model, key.mesh_shape, "data/none")
        mesh = DeviceMesh.create(key.mesh_shape, key.profile)
        step = baseline_step(hand, self._model.state, self._model.batch, mesh)
        try:
            compile_for(_target(key.profile), step)
        except kiwi.errors.KiwiError as error:
            return f"XLA does not compile it either: {error.cause or error.what}"
        return "XLA compiles it"


def _target(profile: str) -> str:
    return of_platform(DeviceMesh.create((1,), profile).hardware.backend).name


def _figures(estimate: Estimate, compiled: CompiledProgram | None) -> Row:
    assert compiled is not None
    return {
        "predicted_peak_bytes": estimate.peak_bytes,
        "compiled_peak_bytes": compiled.peak_bytes,
        "argument_bytes": compiled.argument_bytes,
        "predicted_step_seconds": estimate.step_seconds,
        "compiled_step_seconds": compiled.step_seconds,
        "predicted_collectives": _uses(estimate.collective_uses),
        "compiled_collectives": _uses(compiled.collective_uses),
        "rematerialized": compiled.rematerialized,
    }


def _uses(uses: tuple[AxisUse, ...]) -> dict[str, list[int]]:
    """Returns [count, bytes] by kind."""
    totals: dict[str, list[int]] = {}
    for use in uses:
        before = totals.get(use.kind, [0, 0])
        totals[use.kind] = [before[0] + int(use.count), before[1] + int(use.bytes)]
    return totals


def _kernels(told: Deviation) -> dict[str, list[list[Any]]]:
    """Returns the largest deviations: estimated, compiled, kernel, number of units, shape,
    source."""
    kinds = dict.fromkeys(kernel.what for kernel in told.kernels)
    return {kind: [_kernel(kernel) for kernel in told.of(kind)[:_KERNELS]] for kind in kinds}


def _kernel(kernel: KernelDeviation) -> list[Any]:
    source = re.sub(r"^\S*/(?=[^/]+\.py)", "", kernel.source_line)
    shape = "x".join(map(str, kernel.shape))
    return [kernel.predicted, kernel.compiled, kernel.name, len(kernel.units), shape, source]


def _cpu_seconds() -> float:
    """Returns the processor seconds of this process and of the processes that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
