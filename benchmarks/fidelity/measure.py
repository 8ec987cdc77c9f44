"""One row of the benchmark: plans or prices a step, compiles it, and records the figures of
both."""

import functools
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import kiwi
from benchmarks.fidelity.models import ALL
from benchmarks.fidelity.variants import HandVariant, PlannedVariant, baseline
from benchmarks.hardware import priced_as
from examples.baselines import (
    UNLIMITED,
    Baseline,
    baseline_step,
    estimate_baseline,
    planned_baseline,
)
from kiwi.mesh import DeviceMesh, Hardware, collective
from kiwi.plans.estimate import Estimate
from kiwi.xla.compilers import compile_for, overlapping_compiles
from kiwi.xla.read.collectives import AxisUse, CollectiveUse
from kiwi.xla.read.compiled_program import CompiledProgram
from kiwi.xla.step import Step

Row = dict[str, Any]
"""A row as JSON. Sizes are in bytes, times in seconds, and collectives are {kind: [count,
bytes]}."""


@dataclass(frozen=True)
class Case:
    """The model, mesh and target of several rows. A target of None compiles nothing.

    - `profile`: the name of the hardware planned for.
    - `effort`: the effort of each search, which no time limit ends.
    """

    model: str
    mesh_shape: tuple[int, ...]
    target: str | None
    profile: str
    effort: str = "normal"

    @property
    def hardware(self) -> Hardware:
        """The hardware of the profile, with programs by the compiler of the target."""
        return priced_as(self.profile, self.target)

    @property
    def arguments(self) -> tuple[Any, Any]:
        """The abstract state and batch."""
        model = ALL[self.model]
        state = model.module.abstract_state(model.config)
        return state, model.module.abstract_batch(model.config)


def planned_row(case: Case, variant: PlannedVariant, free_peak_bytes: int | None) -> Row:
    """Plans under the variant's share of `free_peak_bytes`, and checks with the case's target.

    If no plan fits that budget, the row is for the smallest budget that the error names, and
    `asked_bytes` is the budget of the variant.
    """
    if variant.share is None:
        return planned_under(case, UNLIMITED)
    assert free_peak_bytes is not None
    budget = int(variant.share * free_peak_bytes)
    row = planned_under(case, budget)
    if "error" not in row or row["least_peak_bytes"] is None:
        return row
    return {**planned_under(case, row["least_peak_bytes"]), "asked_bytes": budget}


def planned_under(case: Case, budget: int | str) -> Row:
    """Plans under a budget in bytes, and checks with the case's target."""
    started = time.monotonic()
    refused = False
    try:
        plan = make_plan(case, budget)
    except kiwi.errors.BudgetNotMetError as error:
        plan, refused = error.plan, True
    except kiwi.errors.KiwiError as error:
        return {**_failure(error), "total_seconds": _since(started)}
    assert plan.compiled is not None
    return {
        "budget_bytes": None if budget == UNLIMITED else budget,
        **_predicted(plan.estimate),
        **_compiled(plan.compiled),
        "unpredicted_seconds": unpredicted_seconds(plan.estimate, plan.compiled, plan.mesh),
        "fits": plan.fits,
        "refused": refused,
        "recomputed_units": plan.residency_counts()["recompute"],
        "gap": plan.solve_result.gap,
        "rounds": [asdict(r) for r in plan.rounds],
        "solve_seconds": plan.solve_result.seconds,
        "total_seconds": _since(started),
    }


def make_plan(case: Case, budget: int | str) -> kiwi.Plan:
    """Returns the plan of a case under a budget, checked with the case's target.

    **Raises:** as `kiwi.plan`.
    """
    planned = _planned(case.model).with_options(
        mesh_shape=case.mesh_shape,
        memory_budget=budget,
        profile=case.hardware,
        verify=case.target,
        effort=case.effort,
    )
    return planned.plan(*case.arguments)


def hand_row(case: Case, variant: HandVariant) -> Row:
    """Returns the row of a step sharded by hand: run by Kiwi as it is, and compiled without Kiwi
    ("plain")."""
    started = time.monotonic()
    assert case.target is not None
    hand = baseline(ALL[case.model], case.mesh_shape, variant)
    try:
        plan = planned_baseline(
            hand,
            *case.arguments,
            mesh_shape=case.mesh_shape,
            profile=case.hardware,
            verify=case.target,
        )
        assert plan.as_written is not None and plan.compiled is not None
        plain = _plain(case, hand, plan.as_written)
    except kiwi.errors.KiwiError as error:
        return {**_failure(error), "total_seconds": _since(started)}
    return {
        **_predicted(plan.estimate),
        **_compiled(plan.compiled),
        "plain": plain,
        "total_seconds": _since(started),
    }


def plain_row(case: Case, variant: HandVariant) -> Row:
    """Returns the row of a step sharded by hand, compiled only without Kiwi."""
    started = time.monotonic()
    hand = baseline(ALL[case.model], case.mesh_shape, variant)
    try:
        as_written = estimate_baseline(
            hand,
            *case.arguments,
            mesh_shape=case.mesh_shape,
            profile=case.hardware,
        )
        return {**_plain(case, hand, as_written), "total_seconds": _since(started)}
    except kiwi.errors.KiwiError as error:
        return {**_failure(error), "total_seconds": _since(started)}


def _plain(case: Case, hand: Baseline, as_written: Estimate) -> Row:
    assert case.target is not None
    mesh = DeviceMesh.create(case.mesh_shape, case.hardware)
    program = _compiled_as_jit(case.target, baseline_step(hand, *case.arguments, mesh))
    return {
        **_predicted(as_written),
        **_compiled(program),
        "unpredicted_seconds": unpredicted_seconds(as_written, program, mesh),
    }


def _compiled_as_jit(target: str, step: Step) -> CompiledProgram:
    """Compiles a step with collectives that overlap with computation, as `jax.jit` runs it. If the
    compiler knows several ways to overlap, the program with the fastest schedule is returned."""
    ways = overlapping_compiles(target)
    begun = [begin(step) for begin in ways]
    programs = [program() for program in begun] or [compile_for(target, step)]
    return min(programs, key=lambda program: program.step_seconds or 0.0)


@functools.cache
def _planned(model: str) -> kiwi.PlannedFunction:
    """Returns the step to plan. It is cached, so that a step is traced once for all meshes and
    budgets."""
    step = ALL[model].module.make_train_step(ALL[model].config)
    return kiwi.jit(step, mesh_shape=(1,), donate_argnums=0)


def _predicted(estimate: Estimate) -> Row:
    return {
        "predicted_peak_bytes": estimate.peak_bytes,
        "predicted_step_seconds": estimate.step_seconds,
        "predicted_collectives": _uses(estimate.collectives),
    }


def _compiled(compiled: CompiledProgram) -> Row:
    return {
        "compiled_peak_bytes": compiled.peak_bytes,
        "compiled_temporary_bytes": compiled.temporary_bytes,
        "compiled_argument_bytes": compiled.argument_bytes,
        "compiled_collectives": _uses(compiled.collectives),
        "compiled_step_seconds": compiled.step_seconds,
        "compile_seconds": round(compiled.compile_seconds, 2),
    }


def unpredicted_seconds(estimate: Estimate, compiled: CompiledProgram, mesh: DeviceMesh) -> float:
    """Returns the cost of the compiled program's collectives minus the cost of the predicted ones,
    in seconds.

    The cost model prices both. Collectives that XLA adds inside of loops that Kiwi plans whole are
    not predicted.
    """
    compiled_uses, predicted_uses = (
        _by_axes(compiled.collective_uses),
        _by_axes(estimate.collective_uses),
    )
    return _collective_seconds(compiled_uses, mesh) - _collective_seconds(predicted_uses, mesh)


_Uses = dict[tuple[str, tuple[str, ...] | None], tuple[float, float]]
"""Count and bytes of collectives, by kind and axes."""


def _by_axes(uses: Iterable[AxisUse]) -> _Uses:
    return {(use.kind, use.axes): (use.count, use.bytes) for use in uses}


def _collective_seconds(uses: _Uses, mesh: DeviceMesh) -> float:
    total = 0.0
    for (kind, axes), (count, size) in uses.items():
        names = mesh.axis_names if axes is None else axes
        numbers = [mesh.axis_names.index(name) for name in names]
        times = max(count, 1.0)
        cost = collective(kind, mesh, numbers, int(size / times))
        total += times * cost.seconds if size else 0.0
    return total


def _uses(collectives: Mapping[str, CollectiveUse]) -> dict[str, list[int]]:
    return {kind: [use.count, use.bytes] for kind, use in collectives.items()}


def _failure(error: kiwi.errors.KiwiError) -> Row:
    least = getattr(error, "least_peak_bytes", None)
    return {"error": type(error).__name__, "what": error.what, "least_peak_bytes": least}


def _since(started: float) -> float:
    return round(time.monotonic() - started, 2)
