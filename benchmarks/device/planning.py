"""The predictions and plans of `benchmarks.device.plans` for one model."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

import kiwi
from benchmarks.device.models import (
    AT_PEAK_OF,
    BY_HAND,
    FREE,
    HOST_BUDGET,
    MODELS,
    OFFLOADING,
    ONE,
    SHARES,
    WITH_HOST,
    by_hand,
    plan_file,
)
from benchmarks.emission.variants import Case
from examples._common import Specs
from examples.baselines import Baseline, baseline_step, estimate_baseline
from kiwi.errors import BudgetNotMetError, InfeasibleBudgetError
from kiwi.mesh import DeviceMesh, Hardware
from kiwi.xla.compilers import compile_for

Row = dict[str, Any]


def predicted(
    name: str, folder: Path, known: Mapping[str, Row], profile: str, verify: str
) -> Iterator[tuple[str, Row]]:
    """Yields, for each variant of a model, its name and its predicted row. Plans are saved in
    `folder`. Variants in `known`, the rows of earlier runs, are skipped."""
    case = MODELS[name]
    for key, remat in BY_HAND.items():
        if key not in known and (remat is None or case.is_checkpointed):
            yield key, _by_hand_row(case, remat, profile, verify)
    for share_key, share in SHARES.items():
        budget = share and share * known[FREE]["check_peak_bytes"] // 100
        for host in (None, HOST_BUDGET) if share and name in OFFLOADING else (None,):
            key = share_key + (WITH_HOST if host else "")
            if key not in known:
                path, budgets = folder / plan_file(name, key), (budget, host)
                yield key, planned(case, path, *budgets, profile=profile, verify=verify)
    for key, hand in AT_PEAK_OF.items():
        budget = known.get(hand, {}).get("check_peak_bytes")
        if key not in known and budget and budget < known[FREE]["check_peak_bytes"]:
            path = folder / plan_file(name, key)
            yield key, planned(case, path, budget, None, profile=profile, verify=verify)


def _by_hand_row(case: Case, remat: Any, profile: str, verify: str) -> Row:
    estimate = estimate_by_hand(case, remat, profile)
    step = baseline_step(_baseline(case, remat), *case.arguments, DeviceMesh.create(ONE, profile))
    program = compile_for(verify, step)
    return {
        "predicted_peak_bytes": estimate.peak_bytes,
        "predicted_step_seconds": estimate.step_seconds,
        "check_peak_bytes": program.peak_bytes,
        "check_step_seconds": program.step_seconds,
    }


def estimate_by_hand(case: Case, remat: Any, profile: str) -> Any:
    """Returns the estimate of a step with one of the policies of `BY_HAND`, on one device."""
    baseline = _baseline(case, remat)
    return estimate_baseline(baseline, *case.arguments, mesh_shape=ONE, profile=profile)


def _baseline(case: Case, remat: Any) -> Baseline:
    everywhere = jax.sharding.PartitionSpec()
    state = jax.tree.map(lambda _: everywhere, case.arguments[0])
    return Baseline("", by_hand(case, remat), Specs(state, everywhere))


def planned(
    case: Case,
    path: Path,
    budget: int | None,
    host: str | None,
    *,
    profile: str | Hardware = "h100-sxm",
    verify: str = "cuda",
) -> Row:
    """Returns the predictions of a plan, which is saved at `path`; or the refusal if there is no
    plan."""
    try:
        plan = kiwi.plan(
            case.train_step(),
            *case.arguments,
            mesh_shape=ONE,
            profile=profile,
            memory_budget=budget,
            host_memory_budget=host,
            donate_argnums=0,
            verify=verify,
        )
    except (BudgetNotMetError, InfeasibleBudgetError) as error:
        return {"refused": str(error).splitlines()[0]}
    assert plan.compiled is not None
    plan.save(path)
    return {
        "budget_bytes": budget,
        "predicted_peak_bytes": plan.estimate.peak_bytes,
        "predicted_step_seconds": plan.estimate.step_seconds,
        "predicted_host_bytes": plan.estimate.host_peak_bytes,
        "check_peak_bytes": plan.compiled.peak_bytes,
        "check_step_seconds": plan.compiled.step_seconds,
        "is_tied": plan.rounds[-1].is_tied,
        "residencies": dict(plan.residency_counts()),
    }
