"""Measures the missing rows of the benchmark; see `benchmarks.fidelity`."""

import collections
import datetime
import json
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from absl import app, flags

import kiwi
from benchmarks.fidelity.measure import Case, Row, hand_row, planned_row
from benchmarks.fidelity.models import MODELS
from benchmarks.fidelity.report import markdown, scatter
from benchmarks.fidelity.summary import Key, peak_error, summarise
from benchmarks.fidelity.variants import (
    REMATS,
    HandVariant,
    PlannedVariant,
    hand_variants,
    planned_variants,
)
from benchmarks.provenance import commit

_MODELS = flags.DEFINE_list("models", list(MODELS), "Models of benchmarks.fidelity.models.")
_MESHES = flags.DEFINE_list("meshes", ["1x1", "1x4", "2x4", "8x1"], "Mesh shapes.")
_TARGETS = flags.DEFINE_list("targets", ["cpu"], 'Targets of verify: "cpu", "cuda", "tpu".')
_SHARES = flags.DEFINE_list("shares", ["80", "60", "45"], "Budgets, in % of the free peak.")
_REMATS = flags.DEFINE_list(
    "remats", ["none", "full", "dots"], "jax.checkpoint in steps by hand; empty for none of these."
)
_SHARDINGS = flags.DEFINE_list(
    "shardings", ["single", "data", "fsdp", "megatron", "mixed"], "Of steps by hand."
)
_PROFILE = flags.DEFINE_string("profile", "h100-sxm", "The hardware planned for.")
_OUT = flags.DEFINE_string(
    "out", "benchmarks/fidelity/results/fidelity.json", "Results; .md and .png lie beside."
)
_REDO = flags.DEFINE_bool("redo", False, "Whether to measure rows anew that are there already.")


def main(_: list[str]) -> None:
    """Measures the missing rows, and writes the results after each one."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    out = Path(_OUT.value)
    out.parent.mkdir(parents=True, exist_ok=True)
    rows: dict[str, Row] = json.loads(out.read_text())["rows"] if out.exists() else {}
    done: set[str] = set() if _REDO.value else set(rows)
    for case, variant in _cases():
        key = Key(case.model, "x".join(map(str, case.mesh_shape)), variant.name, case.target)
        if str(key) in done:
            continue
        rows[str(key)] = {**_measure(case, variant, key, rows), "commit": commit()}
        _print(key, rows[str(key)])
        _write(out, rows)
    _write(out, rows)
    _write_reports(out)


def _cases() -> Iterator[tuple[Case, PlannedVariant | HandVariant]]:
    shares = [float(share) / 100 for share in _SHARES.value]
    remats = [r for r in REMATS if (r or "none") in _REMATS.value]
    for model in _MODELS.value:
        for mesh in _MESHES.value:
            shape = tuple(map(int, mesh.split("x")))
            for target in _TARGETS.value:
                case = Case(model, shape, target, _PROFILE.value)
                by_hand = (
                    variant
                    for variant in hand_variants(shape, remats)
                    if variant.sharding in _SHARDINGS.value
                )
                for variant in (*planned_variants(shares), *by_hand):
                    yield case, variant


def _measure(
    case: Case, variant: PlannedVariant | HandVariant, key: Key, rows: dict[str, Row]
) -> Row:
    if isinstance(variant, HandVariant):
        return hand_row(case, variant)
    free = rows.get(str(Key(key.model, key.mesh, PlannedVariant(None).name, key.target)), {})
    if variant.share is not None and "compiled_peak_bytes" not in free:
        return {
            "error": "NoFreePlan",
            "what": "The plan without a budget failed.",
            "total_seconds": 0,
        }
    return planned_row(case, variant, free.get("compiled_peak_bytes"))


def _print(key: Key, row: Row) -> None:
    error = peak_error(row)
    result = row.get("what", "") if error is None else f"{error:+.1%}"
    print(f"{key}: {result} in {row['total_seconds']} s", flush=True)


def _write(out: Path, rows: dict[str, Row]) -> None:
    results = {"environment": _environment(rows), "summary": summarise(rows), "rows": rows}
    partial = out.with_suffix(".partial")
    partial.write_text(json.dumps(results, indent=1) + "\n")
    partial.replace(out)


def _write_reports(out: Path) -> None:
    results = json.loads(out.read_text())
    rows = results["rows"]
    out.with_suffix(".md").write_text(markdown(results["environment"], rows, results["summary"]))
    scatter(rows, out.with_suffix(".png"))


def _commits(rows: dict[str, Row]) -> str:
    """Returns the commits that rows were measured at, with the number of rows of each."""
    counts = collections.Counter(str(row.get("commit")) for row in rows.values())
    return ", ".join(
        f"{count} rows at {commit_of_rows}" for commit_of_rows, count in counts.most_common()
    )


def _environment(rows: dict[str, Row]) -> dict[str, Any]:
    return {
        "date": datetime.date.today().isoformat(),
        "command": "python -m benchmarks.fidelity",
        "kiwi": kiwi.__version__,
        "jax": jax.__version__,
        "jaxlib": metadata.version("jaxlib"),
        "python": platform.python_version(),
        "profile": _PROFILE.value,
        "commits": _commits(rows),
    }


if __name__ == "__main__":
    app.run(main)
