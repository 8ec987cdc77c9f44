"""Makes the plans that `benchmarks.device` runs; needs XLA:GPU's compiler, and no GPU.

python -m benchmarks.device.plans --out=plans --models=gpt,mlp
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from absl import app, flags

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
    plan_file,
)
from benchmarks.emission.variants import Case
from examples._common import Specs
from examples.baselines import Baseline, estimate_baseline
from kiwi.errors import BudgetNotMetError, InfeasibleBudgetError

_NAMES = flags.DEFINE_list("models", list(MODELS), "Which ones.")
_PROFILE = flags.DEFINE_string("profile", "h100-sxm", "Of the card; a file of a table will do.")
_VERIFY = flags.DEFINE_string("verify", "cuda", "The compiler that plans are checked with.")
_OUT = flags.DEFINE_string("out", "plans", "The folder for them.")


def main(_: list[str]) -> None:
    """Makes what is missing."""
    jax.config.update("jax_platforms", "cpu")
    folder = Path(_OUT.value)
    folder.mkdir(parents=True, exist_ok=True)
    for name in _NAMES.value:
        path = folder / f"{name}.json"
        rows = json.loads(path.read_text()) if path.exists() else {}
        for key, row in _rows(name, folder, rows):
            rows[key] = row
            path.write_text(json.dumps(rows, indent=1) + "\n")
            print(name, key, row, flush=True)


def _rows(name: str, folder: Path, known: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of each way to run a model what is predicted; plans are saved beside."""
    case = MODELS[name]
    for key, remat in BY_HAND.items():
        if key not in known and (remat is None or case.is_checkpointed):
            estimate = _by_hand(case, remat)
            yield (
                key,
                {
                    "predicted_peak_bytes": estimate.peak_bytes,
                    "predicted_step_seconds": estimate.step_seconds,
                },
            )
    for key, share in SHARES.items():
        free_bytes = known[FREE]["check_peak_bytes"] if share else 0
        budget = share * free_bytes // 100 if share else None
        for host in (None, HOST_BUDGET) if share and name in OFFLOADING else (None,):
            if (key := f"{key}{WITH_HOST if host else ''}") not in known:
                yield key, _planned(case, folder / plan_file(name, key), budget, host)


def _by_hand(case: Case, remat: Any) -> Any:
    everywhere = jax.sharding.PartitionSpec()
    state, batch = case.arguments
    step = case.train_step(**({"remat": remat} if remat else {}))
    baseline = Baseline("", step, Specs(jax.tree.map(lambda _: everywhere, state), everywhere))
    return estimate_baseline(baseline, state, batch, mesh_shape=ONE, profile=_PROFILE.value)


def _planned(case: Case, path: Path, budget: int | None, host: str | None) -> dict[str, Any]:
    try:
        plan = kiwi.plan(
            case.train_step(),
            *case.arguments,
            mesh_shape=ONE,
            profile=_PROFILE.value,
            memory_budget=budget,
            host_memory_budget=host,
            donate_argnums=0,
            verify=_VERIFY.value,
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


if __name__ == "__main__":
    app.run(main)
