"""Plans against `jax.checkpoint` under shardings by hand, at equal compiled peak.

    python -m benchmarks.fidelity.against_checkpoint --models=gpt --meshes=2x4

For each model, mesh and policy of `jax.checkpoint` the best sharding by hand is taken (the one of
least estimated time; of equal ones that of least peak), and Kiwi plans under its compiled peak as
budget. Compared are estimated times, by the same evaluator. Last, Kiwi plans under parts of the
least peak that anything by hand compiles to. A run that was interrupted goes on where it
stopped.
"""

import datetime
import json
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from absl import app, flags

import kiwi
from benchmarks.fidelity.measure import Case, Row, hand_row, planned_under
from benchmarks.fidelity.models import MODELS
from benchmarks.fidelity.variants import REMATS, hand_variants

_MODELS = flags.DEFINE_list("models", list(MODELS), "Models of benchmarks.fidelity.models.")
_MESHES = flags.DEFINE_list("meshes", ["1x1", "1x4", "2x4", "8x1"], "Mesh shapes.")
_TARGET = flags.DEFINE_string("target", "cpu", 'Target of verify: "cpu" or "cuda".')
_PROFILE = flags.DEFINE_string("profile", "h100-sxm", "The hardware planned for.")
_SECONDS = flags.DEFINE_float("time_limit_seconds", 20.0, "For the solver, per plan.")
_BELOW = flags.DEFINE_list("below", ["95", "85", "75"], "Budgets, in % of the least by hand.")
_OUT = flags.DEFINE_string(
    "out", "benchmarks/fidelity/results/against_checkpoint.json", "Results; .md lies beside."
)

TOLERANCE = 1e-6
"""Relative; equal plans may differ by the rounding of their sums."""


def main(_: list[str]) -> None:
    """Measures what is missing and writes after every row."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    out = Path(_OUT.value)
    out.parent.mkdir(parents=True, exist_ok=True)
    rows: dict[str, Row] = json.loads(out.read_text())["rows"] if out.exists() else {}
    for model in _MODELS.value:
        for mesh in _MESHES.value:
            shape = tuple(map(int, mesh.split("x")))
            case = Case(model, shape, _TARGET.value, _PROFILE.value, _SECONDS.value)
            for key in _measured(case, f"{model} {mesh}", rows):
                print(key, json.dumps(rows[key]), flush=True)
                _write(out, rows)
    _write(out, rows)
    out.with_suffix(".md").write_text(table(rows))


def _measured(case: Case, prefix: str, rows: dict[str, Row]) -> Iterator[str]:
    """Fills in the rows of one model and mesh, and yields their keys."""
    for variant in hand_variants(case.mesh_shape, REMATS):
        key = f"{prefix} {variant.name}"
        if key not in rows:
            rows[key] = hand_row(case, variant)
            yield key
    for policy in (remat or "none" for remat in REMATS):
        hand = best_by_hand(rows, prefix, policy)
        key = f"{prefix} kiwi:{policy}"
        if hand is not None and key not in rows:
            rows[key] = planned_under(case, rows[hand]["compiled_peak_bytes"])
            yield key
    least = least_by_hand(rows, prefix)
    for percent in map(float, _BELOW.value if least else ()):
        key = f"{prefix} kiwi:below-{percent:g}"
        if key not in rows:
            rows[key] = planned_under(case, int(percent / 100 * least))
            yield key


def best_by_hand(rows: dict[str, Row], prefix: str, policy: str) -> str | None:
    """The key of the fastest sharding by hand under a policy; None if none is priced."""
    found = {
        key: (row["predicted_step_seconds"], row["compiled_peak_bytes"])
        for key, row in rows.items()
        if key.startswith(f"{prefix} ") and key.endswith(f"/{policy}")
        if "predicted_step_seconds" in row and "compiled_peak_bytes" in row
    }
    return min(found, key=lambda key: found[key]) if found else None


def least_by_hand(rows: dict[str, Row], prefix: str) -> int:
    """The least compiled peak of anything by hand, in bytes; 0 if nothing compiled."""
    peaks = [
        row["compiled_peak_bytes"]
        for key, row in rows.items()
        if key.startswith(f"{prefix} ") and "/" in key and "compiled_peak_bytes" in row
    ]
    return min(peaks, default=0)


def table(rows: dict[str, Row]) -> str:
    """One line per model, mesh and policy: peaks, times, and whether the plan is no slower."""
    lines = ["# Plans against jax.checkpoint at equal compiled peak", ""]
    lines += ["| model, mesh | policy | by hand | peak MiB | step ms | planned ms | no slower |"]
    lines += ["| --- | --- | --- | ---: | ---: | ---: | --- |"]
    lines += [_line(rows, key) for key in rows if " kiwi:" in key and "kiwi:below" not in key]
    lines += ["", "Budgets below everything by hand:", ""]
    for key in (key for key in rows if "kiwi:below" in key):
        row = rows[key]
        met = "met" if row.get("fits") else row.get("error", "not met")
        lines.append(f"- {key}: {met}")
    return "\n".join(lines) + "\n"


def _line(rows: dict[str, Row], key: str) -> str:
    prefix, policy = key.split(" kiwi:")
    hand = best_by_hand(rows, prefix, policy)
    assert hand is not None
    seconds = rows[hand]["predicted_step_seconds"]
    planned = rows[key].get("predicted_step_seconds")
    said = rows[key].get("error", "") if planned is None else f"{1e3 * planned:.3f}"
    no_slower = "yes" if is_no_slower(rows[key], rows[hand]) else "no"
    cells = (
        prefix,
        policy,
        hand.removeprefix(f"{prefix} "),
        f"{rows[hand]['compiled_peak_bytes'] / 2**20:.1f}",
        f"{1e3 * seconds:.3f}",
        said,
        no_slower,
    )
    return "| " + " | ".join(cells) + " |"


def is_no_slower(planned: Row, hand: Row) -> bool:
    """Whether a plan meets the budget and its estimated time is at most that by hand."""
    if not planned.get("fits") or "predicted_step_seconds" not in planned:
        return False
    return planned["predicted_step_seconds"] <= hand["predicted_step_seconds"] * (1 + TOLERANCE)


def _write(out: Path, rows: dict[str, Row]) -> None:
    environment: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "command": "python -m benchmarks.fidelity.against_checkpoint",
        "kiwi": kiwi.__version__,
        "jax": jax.__version__,
        "jaxlib": metadata.version("jaxlib"),
        "profile": _PROFILE.value,
        "target": _TARGET.value,
    }
    pairs = [key.split(" kiwi:") for key in rows if " kiwi:" in key and "kiwi:below" not in key]
    hands = {(p, policy): best_by_hand(rows, p, policy) for p, policy in pairs}
    verdicts = [is_no_slower(rows[f"{p} kiwi:{n}"], rows[h]) for (p, n), h in hands.items() if h]
    summary = {"compared": len(verdicts), "no_slower": sum(verdicts)}
    results = {"environment": environment, "summary": summary, "rows": rows}
    out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    app.run(main)
