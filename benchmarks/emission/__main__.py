"""Measures what is missing, and writes it after every row; see `benchmarks.emission`."""

import datetime
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from absl import app, flags

import kiwi
from benchmarks.emission.figures import figures
from benchmarks.fidelity.models import MODELS
from benchmarks.provenance import commit
from kiwi.emit.emission import emit
from kiwi.errors import BudgetNotMetError, KiwiError
from kiwi.xla.step import Step

_MODELS = flags.DEFINE_list("models", ["mlp", "gpt"], "Models of benchmarks.fidelity.models.")
_COMPILERS = flags.DEFINE_list("compilers", ["cuda", "tpu"], '"cuda", "tpu".')
_SHARES = flags.DEFINE_list("shares", ["80", "60"], "Budgets, in % of the free peak.")
_SECONDS = flags.DEFINE_float("time_limit_seconds", 10.0, "For the solver, per plan.")
_OUT = flags.DEFINE_string("out", "benchmarks/emission/results.json", "Results.")

MESH_SHAPE = (2, 4)
PROFILES = {"cuda": "h100-sxm", "tpu": "v5e"}


def main(_: list[str]) -> None:
    """Measures what is missing."""
    jax.config.update("jax_platforms", "cpu")
    out = Path(_OUT.value)
    rows = json.loads(out.read_text())["rows"] if out.exists() else {}
    for model in _MODELS.value:
        for compiler in _COMPILERS.value:
            for key, row in _rows(model, compiler, rows):
                rows[key] = {**row, "commit": commit()}
                print(key, rows[key], flush=True)
                environment = {
                    "date": datetime.date.today().isoformat(),
                    "command": "python -m benchmarks.emission " + " ".join(sys.argv[1:]),
                    "jax": jax.__version__,
                    "libtpu": metadata.version("libtpu") if compiler == "tpu" else None,
                    "mesh_shape": MESH_SHAPE,
                    "profiles": PROFILES,
                    "time_limit_seconds": _SECONDS.value,
                }
                out.write_text(json.dumps({"environment": environment, "rows": rows}, indent=1))


def _rows(model: str, compiler: str, rows: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    free_peak_bytes = 0
    for share in (None, *map(float, _SHARES.value)):
        key = f"{model} {compiler} {'free' if share is None else f'{share:g} %'}"
        budget = None if share is None else int(share / 100 * free_peak_bytes)
        row = rows.get(key) or _row(model, compiler, budget)
        yield key, row
        if share is None:
            free_peak_bytes = row["planned"]["peak_bytes"]


def _row(model: str, compiler: str, budget: int | None) -> dict[str, Any]:
    module, config = MODELS[model].module, MODELS[model].config
    arguments = module.abstract_state(config), module.abstract_batch(config)
    step = module.make_train_step(config)
    options = {
        "mesh_shape": MESH_SHAPE,
        "profile": PROFILES[compiler],
        "verify": compiler,
        "donate_argnums": 0,
        "time_limit_seconds": _SECONDS.value,
    }
    try:
        plan = kiwi.plan(step, *arguments, memory_budget=budget, **options)
    except BudgetNotMetError as error:
        plan = error.plan
    except KiwiError as error:
        return {"budget_bytes": budget, "error": type(error).__name__}
    execution = plan.execution
    checkpointed = module.make_train_step(config, remat="full")
    every = replace(plan.step, function=emit(replace(execution, tied_steps=None)))
    steps = {
        "planned": plan.step,
        "every step": every,
        "plain": _plain(plan, step),
        "checkpoint": _plain(plan, checkpointed),
    }
    tied = execution.tied_steps
    return {
        "budget_bytes": budget,
        "fits": plan.fits,
        "steps": len(execution.schedule.steps),
        "recomputed_units": len(execution.recomputed),
        "tied_steps": None if tied is None else len(tied),
        "estimated_peak_bytes": plan.estimate.peak_bytes,
        "compilations": len(plan.rounds),
        **{name: figures(each, compiler) for name, each in steps.items()},
    }


def _plain(plan: kiwi.Plan, function: Callable[..., Any]) -> Step:
    """A function as it is, with the plan's shardings of arguments and results."""
    tree = plan.traced.call.tree

    def flat(*leaves: Any) -> list[Any]:
        args, kwargs = jax.tree.unflatten(tree, leaves)
        return jax.tree.leaves(function(*args, **kwargs))

    return replace(plan.step, function=flat)


if __name__ == "__main__":
    app.run(main)
