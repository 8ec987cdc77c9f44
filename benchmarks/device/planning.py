"""What `benchmarks.device.plans` predicts and plans of a model."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

import kiwi
from benchmarks.device.models import (
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
from examples.baselines import Baseline, estimate_baseline
from kiwi.errors import BudgetNotMetError, InfeasibleBudgetError

Row = dict[str, Any]


def predicted(
    name: str, folder: Path, known: Mapping[str, Row], profile: str, verify: str
) -> Iterator[tuple[str, Row]]:
    """Of each way to run a model what is predicted; plans are saved in the folder, `known` are the
    rows that are there already."""
    case = MODELS[name]
    for key, remat in BY_HAND.items():
        if key not in known and (remat is None or case.is_checkpointed):
            estimate = estimate_by_hand(case, remat, profile)
            peak_bytes, seconds = estimate.peak_bytes, estimate.step_seconds
            yield key, {"predicted_peak_bytes": peak_bytes, "predicted_step_seconds": seconds}
    for share_key, share in SHARES.items():
        budget = share and share * known[FREE]["check_peak_bytes"] // 100
        for host in (None, HOST_BUDGET) if share and name in OFFLOADING else (None,):
            key = share_key + (WITH_HOST if host else "")
            if key not in known:
                path, budgets = folder / plan_file(name, key), (budget, host)
                yield key, planned(case, path, *budgets, profile=profile, verify=verify)


def estimate_by_hand(case: Case, remat: Any, profile: str) -> Any:
    """What a step with one of the policies of `BY_HAND` is estimated to take on one device."""
    everywhere = jax.sharding.PartitionSpec()
    state, batch = case.arguments
    baseline = Baseline(
        "", by_hand(case, remat), Specs(jax.tree.map(lambda _: everywhere, state), everywhere)
    )
    return estimate_baseline(baseline, state, batch, mesh_shape=ONE, profile=profile)


def planned(
    case: Case,
    path: Path,
    budget: int | None,
    host: str | None,
    *,
    profile: str = "h100-sxm",
    verify: str = "cuda",
) -> Row:
    """What a plan predicts, which is saved at `path`; or that there is none."""
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
