"""Plans against `jax.checkpoint` under hand-written shardings, at equal compiled peak.

    python -m benchmarks.fidelity.against_checkpoint --models=gpt,encoder --meshes=2x4

The benchmark compiles all combinations of a hand-written sharding (data parallel, fully sharded,
Megatron, both axes mixed) and a policy (nothing, full, dots, dots without batch). The cost model of
plans prices the combinations too. Collectives of the compiled programs that were not predicted,
such as those that XLA puts into a scan's body, count on both sides.

The schedules of the compiled programs are simulated as well (`kiwi.xla.simulated`). Hand-written
steps run with collectives that overlap, in the fastest way.

The front holds the combinations that no other one beats in both peak and time. The step is planned
for the peak of each combination of the front. The smallest of these budgets is then lowered
`--below` times by the factor `SHRINK`, to find peaks that plans reach and no combination does.
Results are written after each case.
"""

import datetime
import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from absl import app, flags

import kiwi
from benchmarks.fidelity.measure import Case, Row, plain_row, planned_under
from benchmarks.fidelity.models import ALL
from benchmarks.fidelity.summary import Key
from benchmarks.fidelity.variants import HandVariant, hand_variants

SHRINK = 0.95

_MODELS = flags.DEFINE_list("models", list(ALL), "Models of benchmarks.fidelity.models.")
_MESHES = flags.DEFINE_list("meshes", ["2x4"], "Mesh shapes.")
_TARGET = flags.DEFINE_string("target", "cpu", "Target of verify.")
_PROFILE = flags.DEFINE_string("profile", "h100-sxm", "The hardware planned for.")
_EFFORT = flags.DEFINE_string("effort", "normal", "Of each search.")
_BELOW = flags.DEFINE_integer("below", 4, "Budgets below all by hand.")
_BY_HAND = flags.DEFINE_string(
    "by_hand", "", "Results of benchmarks.fidelity, from which rows by hand are taken if there."
)
_OUT = flags.DEFINE_string(
    "out", "benchmarks/fidelity/results/against_checkpoint.json", "Results; .md lies beside."
)


def main(_: list[str]) -> None:
    """Measures the missing cases."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    out = Path(_OUT.value)
    cases: dict[str, Any] = json.loads(out.read_text())["cases"] if out.exists() else {}
    known = json.loads(Path(_BY_HAND.value).read_text())["rows"] if _BY_HAND.value else {}
    for model in _MODELS.value:
        for mesh in _MESHES.value:
            if f"{model} {mesh}" in cases:
                continue
            shape = tuple(map(int, mesh.split("x")))
            case = Case(model, shape, _TARGET.value, _PROFILE.value, _EFFORT.value)
            cases[f"{model} {mesh}"] = _compare(case, known)
            _write(out, cases)
            print(_line(f"{model} {mesh}", cases[f"{model} {mesh}"]), flush=True)


def _compare(case: Case, known: Mapping[str, Row]) -> dict[str, Any]:
    variants = {v.name: v for v in hand_variants(case.mesh_shape)}
    hand = {name: _plain_row(case, variant, known) for name, variant in variants.items()}
    usable = {n: r for n, r in hand.items() if "predicted_step_seconds" in r}
    names = front(usable)
    plans = {name: planned_under(case, usable[name]["compiled_peak_bytes"]) for name in names}
    least = min(row["compiled_peak_bytes"] for row in usable.values())
    beyond = {
        f"{SHRINK**k:.2f}": planned_under(case, int(least * SHRINK**k))
        for k in range(1, _BELOW.value + 1)
    }
    return {"by_hand": hand, "front": names, "plans": plans, "below_all": beyond}


def _plain_row(case: Case, variant: HandVariant, known: Mapping[str, Row]) -> Row:
    """Returns the row of the step as `jax.jit` runs it, without Kiwi."""
    mesh = "x".join(map(str, case.mesh_shape))
    row = known.get(str(Key(case.model, mesh, variant.name, str(case.target))))
    row = plain_row(case, variant) if row is None else row
    return row.get("plain", row)


def front(rows: Mapping[str, Row]) -> list[str]:
    """Returns the names of the rows that no other row beats in both peak and time, largest peak
    first."""
    names: list[str] = []
    best = float("inf")
    for name in sorted(rows, key=lambda n: (rows[n]["compiled_peak_bytes"], _seconds(rows[n]))):
        if _seconds(rows[name]) < best:
            best = _seconds(rows[name])
            names.append(name)
    return names[::-1]


def _seconds(row: Row) -> float:
    return row["predicted_step_seconds"] + row.get("unpredicted_seconds", 0.0)


def ratios(case: Mapping[str, Any]) -> list[float]:
    """Returns the planned over the hand-written step time, at each peak of the front that a plan
    met."""
    return [
        _seconds(case["plans"][name]) / _seconds(case["by_hand"][name])
        for name in case["front"]
        if case["plans"][name].get("fits")
    ]


def simulated_ratios(case: Mapping[str, Any]) -> list[float]:
    """Returns the ratios of the simulated schedules of the compiled programs.

    Each plan is compared with the fastest hand-written step whose peak is no larger. By the
    estimates another step may be the fastest.
    """
    ratios_at_peaks = []
    for name in case["front"]:
        plan, peak_bytes = case["plans"][name], case["by_hand"][name]["compiled_peak_bytes"]
        by_hand = [
            row["compiled_step_seconds"]
            for row in case["by_hand"].values()
            if row.get("compiled_peak_bytes", peak_bytes + 1) <= peak_bytes
            and row.get("compiled_step_seconds")
        ]
        if plan.get("fits") and by_hand:
            ratios_at_peaks.append(plan["compiled_step_seconds"] / min(by_hand))
    return ratios_at_peaks


def _line(name: str, case: Mapping[str, Any]) -> str:
    known, simulated = ratios(case), simulated_ratios(case)
    reached = [share for share, row in case["below_all"].items() if row.get("fits")]
    worst = f"{max(known):.3f}" if known else "-"
    as_compiled = f"{max(simulated):.3f}" if simulated else "-"
    return (
        f"| {name} | {len(known)}/{len(case['front'])} | {worst} | "
        f"{f'{min(known):.3f}' if known else '-'} | {as_compiled} | {min(reached, default='-')} |"
    )


def _write(out: Path, cases: Mapping[str, Any]) -> None:
    environment = {
        "date": datetime.date.today().isoformat(),
        "command": "python -m benchmarks.fidelity.against_checkpoint",
        "jax": metadata.version("jax"),
        "kiwi": kiwi.__version__,
        "target": _TARGET.value,
        "profile": _PROFILE.value,
        "effort": _EFFORT.value,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"environment": environment, "cases": cases}, indent=1) + "\n")
    lines = ["# Planned over hand-written step time, at equal compiled peak", ""]
    lines += [f"{key}: {value}  " for key, value in environment.items()]
    lines += [
        "",
        "| model, mesh | peaks of the front met | worst ratio | best ratio | "
        "worst ratio of compiled schedules | reached below all of them |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        *(_line(name, case) for name, case in cases.items()),
    ]
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    app.run(main)
