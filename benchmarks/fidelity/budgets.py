"""One model under many budgets: does the budget hold, and are peak and time monotonic in the
budget?

    python -m benchmarks.fidelity.budgets --model=gpt --size=gpt-13b-1l --mesh=2x4

Budgets are spread evenly between `--lowest` times the free peak and the free peak, or drawn at
random (`--random`). Each budget is planned independently, as a user would, from the smallest on.
From one budget to the next larger one, the compiled peak should not drop and the estimated step
time should not rise. The largest drop and the largest rise are reported. The same figures are
reported for a sweep (`kiwi.sweep`), in which budgets share their plans. Results are written after
each plan, with the rounds and seconds of the closed loop. This measures the cost of planning
`gpt-13b-4l`:

    python -m benchmarks.fidelity.budgets --size=gpt-13b-4l --count=3 --lowest=0.5
"""

import datetime
import json
import time
from dataclasses import asdict
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import app, flags

import kiwi
from kiwi.sweep import sweep_budgets

_MODEL = flags.DEFINE_string("model", "gpt", "Module of examples.")
_SIZE = flags.DEFINE_string("size", "gpt-13b-1l", "One of its SIZES.")
_MESH = flags.DEFINE_string("mesh", "2x4", "Mesh shape.")
_PROFILE = flags.DEFINE_string("profile", "h100-sxm", "The hardware planned for.")
_TARGET = flags.DEFINE_string("target", "cpu", 'Target of verify: "cpu", "cuda".')
_COUNT = flags.DEFINE_integer("count", 20, "How many budgets.")
_LOWEST = flags.DEFINE_float("lowest", 0.4, "The smallest budget, as a part of the free peak.")
_RANDOM = flags.DEFINE_bool("random", False, "Whether to draw the budgets at random.")
_OUT = flags.DEFINE_string("out", "benchmarks/fidelity/results/budgets.json", "Results.")

Row = dict[str, Any]


def main(_: list[str]) -> None:
    """Plans the step without a budget, then under each budget, then as a sweep."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    module = import_module(f"examples.{_MODEL.value}")
    config = module.SIZES[_SIZE.value]
    planned = kiwi.jit(module.make_train_step(config), mesh_shape=(1,), donate_argnums=0)
    arguments = module.abstract_state(config), module.abstract_batch(config)
    free = _row(planned, arguments, "1024TiB")
    rows = [free]
    for budget in _budgets(free["compiled_peak_bytes"]):
        rows.append(_row(planned, arguments, budget))
        print(json.dumps({k: v for k, v in rows[-1].items() if k != "rounds"}), flush=True)
        _write(rows, [])
    _write(rows, _swept(planned, arguments, [row["budget_bytes"] for row in rows[1:]]))


def _swept(planned: kiwi.PlannedFunction, arguments: Any, budgets: list[int]) -> list[Row]:
    points = sweep_budgets(_with_options(planned), budgets, arguments, {})
    return [
        {
            "budget_bytes": p.memory_budget_bytes,
            "compiled_peak_bytes": p.compiled_peak_bytes,
            "step_seconds": p.step_seconds,
            "fits": p.compiled_peak_bytes <= p.memory_budget_bytes,
            "how": p.how,
            "seconds": round(p.seconds, 1),
        }
        if p.compiled_peak_bytes is not None
        else {"budget_bytes": p.memory_budget_bytes, "refused": p.error, "seconds": p.seconds}
        for p in points
    ]


def _with_options(planned: kiwi.PlannedFunction, **options: Any) -> kiwi.PlannedFunction:
    return planned.with_options(
        mesh_shape=tuple(map(int, _MESH.value.split("x"))),
        profile=_PROFILE.value,
        verify=_TARGET.value,
        **options,
    )


def _budgets(free_bytes: int) -> list[int]:
    shares = np.linspace(_LOWEST.value, 1.0, _COUNT.value)
    if _RANDOM.value:
        shares = np.sort(np.random.default_rng(0).uniform(_LOWEST.value, 1.0, _COUNT.value))
    return [int(share * free_bytes) for share in shares]


def _row(planned: kiwi.PlannedFunction, arguments: Any, budget: int | str) -> Row:
    started = time.monotonic()
    options = _with_options(planned, memory_budget=budget)
    row: Row = {"budget_bytes": budget}
    try:
        plan = options.plan(*arguments)
    except kiwi.errors.KiwiError as error:
        return {**row, "refused": type(error).__name__, "seconds": _since(started)}
    assert plan.compiled is not None
    return {
        **row,
        "compiled_peak_bytes": plan.compiled.peak_bytes,
        "predicted_peak_bytes": plan.estimate.peak_bytes,
        "step_seconds": plan.estimate.step_seconds,
        "gap": plan.solve_result.gap,
        "fits": plan.fits,
        "recomputed_units": plan.residency_counts()["recompute"],
        "rounds": [asdict(r) for r in plan.rounds],
        "solve_seconds": round(sum(r.solve_seconds for r in plan.rounds), 1),
        "compile_seconds": round(sum(r.compile_seconds for r in plan.rounds), 1),
        "seconds": _since(started),
    }


def _since(started: float) -> float:
    return round(time.monotonic() - started, 1)


def summarise(rows: list[Row]) -> dict[str, Any]:
    """Returns figures of rows in the order of their budgets: budgets that held, the largest drop of
    the peak, the largest rise of the step time, and seconds of planning."""
    planned = [row for row in rows if "refused" not in row]
    peaks = [row["compiled_peak_bytes"] for row in planned]
    seconds = [row["step_seconds"] for row in planned]
    return {
        "planned": len(planned),
        "refused": len(rows) - len(planned),
        "budgets_met": sum(row["fits"] for row in planned),
        "largest_drop_of_peak": _largest_fall(peaks),
        "largest_rise_of_step_seconds": _largest_fall([-s for s in seconds]),
        "median_seconds": float(np.median([row["seconds"] for row in planned])),
        "most_seconds": max(row["seconds"] for row in planned),
    }


def _largest_fall(values: list[float]) -> float:
    """Returns the largest fall below the highest value so far, relative to that value."""
    largest, highest = 0.0, values[0]
    for value in values[1:]:
        largest = max(largest, (highest - value) / abs(highest))
        highest = max(highest, value)
    return round(largest, 4)


def _write(rows: list[Row], swept: list[Row]) -> None:
    free, *budgets = rows
    results = {
        "environment": {
            "date": datetime.date.today().isoformat(),
            "command": "python -m benchmarks.fidelity.budgets "
            f"--model={_MODEL.value} --size={_SIZE.value} --mesh={_MESH.value} "
            f"--profile={_PROFILE.value} --target={_TARGET.value} "
            f"--count={_COUNT.value} --random={_RANDOM.value}",
            "jax": metadata.version("jax"),
            "kiwi": kiwi.__version__,
        },
        "summary": summarise(budgets) if any("fits" in row for row in budgets) else {},
        "sweep": {"summary": summarise(swept), "rows": swept} if swept else {},
        "free": free,
        "rows": budgets,
    }
    out = Path(_OUT.value)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    app.run(main)
