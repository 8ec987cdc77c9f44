"""Measures the missing rows, and writes after each one; see `benchmarks.emission`."""

import datetime
import json
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from absl import app, flags

import kiwi
from benchmarks.emission.figures import CYCLES, figures, tpu_cycles
from benchmarks.emission.report import report
from benchmarks.emission.variants import CASES, VARIANTS, Case, steps
from benchmarks.provenance import commit
from kiwi.errors import BudgetNotMetError, KiwiError
from kiwi.xla.step import Step

_MODELS = flags.DEFINE_list("models", list(CASES), "Names in benchmarks.emission.variants.")
_COMPILERS = flags.DEFINE_list("compilers", ["cuda", "tpu"], '"cuda", "tpu".')
_SHARES = flags.DEFINE_list("shares", ["80", "60"], "Budgets, in % of the free peak.")
_VARIANTS = flags.DEFINE_list("variants", list(VARIANTS), "Which steps are compiled.")
_CYCLES = flags.DEFINE_list(
    "cycles", [], "Variants for which XLA:TPU generates code too, which takes minutes each."
)
_OUT = flags.DEFINE_string("out", "benchmarks/emission/results", "One file per row; results.md.")

PROFILES = {"cuda": "h100-sxm", "tpu": "v5e"}

Row = dict[str, Any]


def main(_: list[str]) -> None:
    """Measures the missing rows, and writes the page after each model and compiler."""
    jax.config.update("jax_platforms", "cpu")
    for model in _MODELS.value:
        for compiler in _COMPILERS.value:
            _measure(model, compiler)
            (Path(_OUT.value) / "results.md").write_text(report(Path(_OUT.value)))


def _measure(model: str, compiler: str) -> None:
    free: Row = {}
    for share in (None, *map(float, _SHARES.value)):
        path = Path(_OUT.value) / f"{model}_{compiler}_{_name(share)}.json"
        old = json.loads(path.read_text()) if path.exists() else {}
        if share is not None and "planned" not in free:
            break
        budget = None if share is None else int(share / 100 * free["planned"]["peak_bytes"])
        for row in _rows(CASES[model], compiler, budget, old) if _lacks(old, compiler) else (old,):
            _write(path, row)
            free = free or row
        print(path.stem, path.read_text(), flush=True)


def _lacks(row: Row, compiler: str) -> bool:
    wanted = [row[name] for name in _CYCLES.value if name in row] if compiler == "tpu" else []
    return not row or any(
        "program" in figures_of_variant and "cycles" not in figures_of_variant
        for figures_of_variant in wanted
    )


def _known_cycles(row: Row) -> dict[str, Row]:
    """Returns the cycles by fingerprint of the program: equal programs are compiled once."""
    variants = [
        variant for variant in row.values() if isinstance(variant, dict) and "cycles" in variant
    ]
    return {variant["program"]: {key: variant[key] for key in CYCLES} for variant in variants}


def _name(share: float | None) -> str:
    return "free" if share is None else f"{share:g}"


def _write(path: Path, row: Row) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(row, indent=1) + "\n")


def _rows(case: Case, compiler: str, budget: int | None, old: Row) -> Iterator[Row]:
    """Yields the row each time that more of it is known. The cycles of `old` are used where the
    programs are equal."""
    options = {
        "mesh_shape": case.mesh_shape,
        "profile": PROFILES[compiler],
        "verify": compiler,
        "donate_argnums": 0,
    }
    row, started = {"budget_bytes": budget, **_environment(compiler)}, time.monotonic()
    try:
        plan = kiwi.plan(case.train_step(), *case.arguments, memory_budget=budget, **options)
    except BudgetNotMetError as error:
        plan = error.plan
    except KiwiError as error:
        yield {**row, "error": type(error).__name__}
        return
    row |= _of_plan(plan) | {"planning_seconds": round(time.monotonic() - started, 1)}
    steps_of_variants = {
        name: step_of_variant
        for name, step_of_variant in steps(plan, case).items()
        if name in _VARIANTS.value
    }
    for name, step in steps_of_variants.items():
        row[name] = _figures(step, compiler)
    yield row
    if compiler == "tpu":
        yield from _with_cycles(row, steps_of_variants, _known_cycles(old))


def _with_cycles(row: Row, found: dict[str, Step], known: dict[str, Row]) -> Iterator[Row]:
    for name in _CYCLES.value:
        if name in found and "program" in row[name]:
            program = row[name]["program"]
            known[program] = known.get(program) or tpu_cycles(found[name])
            row[name] |= known[program]
            yield row


def _figures(step: Step, compiler: str) -> Row:
    try:
        return figures(step, compiler)
    except KiwiError as error:
        return {"error": type(error).__name__}


def _of_plan(plan: kiwi.Plan) -> Row:
    tied = plan.execution.tied_steps
    return {
        "fits": plan.fits,
        "steps": len(plan.execution.schedule.steps),
        "recomputed_units": len(plan.execution.recomputed),
        "tied_steps": None if tied is None else len(tied),
        "estimated_peak_bytes": plan.estimate.peak_bytes,
        "rounds": [
            ["every_step" if r.is_tied else "fewer", r.compiled_peak_bytes] for r in plan.rounds
        ],
    }


def _environment(compiler: str) -> Row:
    return {
        "command": "python -m benchmarks.emission " + " ".join(sys.argv[1:]),
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "jax": jax.__version__,
        "compiler": metadata.version("libtpu" if compiler == "tpu" else "jax-cuda12-pjrt"),
        "profile": PROFILES[compiler],
    }


if __name__ == "__main__":
    app.run(main)
