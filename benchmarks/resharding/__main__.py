"""Compiles random reshardings and reductions, and writes where the predictions differ.

python -m benchmarks.resharding                       # XLA:CPU
python -m benchmarks.resharding --targets=cpu,cuda    # and XLA:GPU (its wheels, no GPU)
"""

import datetime
import json
import platform
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import app, flags

import kiwi
from benchmarks.resharding.cases import Case, random_cases
from benchmarks.resharding.compiled import Target, Uses, agree, foreseen, seconds
from benchmarks.resharding.greedy import greedy_path
from benchmarks.resharding.partial_sums import Reduced, reduced_matmuls
from benchmarks.resharding.report import report
from kiwi.mesh import DeviceMesh
from kiwi.xla.read.collectives import by_kind

_CASES = flags.DEFINE_integer("cases", 200, "Random reshardings per target.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the cases.")
_TARGETS = flags.DEFINE_list("targets", ["cpu"], "cpu, cuda.")
_OUT = flags.DEFINE_string("out", "benchmarks/resharding/results", "Folder of the results.")

_MESHES = ((8,), (2, 4), (2, 2, 2))


def main(_: list[str]) -> None:
    """Measures all targets, and writes `resharding.json` and `resharding.md`."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    results: dict[str, Any] = {"environment": _environment()}
    for name in _TARGETS.value:
        target = Target(name)
        started = time.monotonic()
        rows = [_row(case, target) for case in random_cases(_CASES.value, _SEED.value)]
        sums = list(_reductions(target))
        results[name] = {
            "seconds": round(time.monotonic() - started, 1),
            "reshardings": rows,
            "partial_sums": sums,
        }
    out = Path(_OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    (out / "resharding.json").write_text(_json(results))
    text = report(results)
    (out / "resharding.md").write_text(text)
    print(text)


def _environment() -> dict[str, Any]:
    return {
        "date": datetime.date.today().isoformat(),
        "command": f"python -m benchmarks.resharding --targets={','.join(_TARGETS.value)}",
        "seed": _SEED.value,
        "jax": jax.__version__,
        "kiwi": kiwi.__version__,
        "python": platform.python_version(),
    }


def _row(case: Case, target: Target) -> dict[str, Any]:
    table = case.table(target.name)
    steps = table.path(case.source, case.target)
    alone = target.reshard(case)
    waypoints = table.waypoints(case.source, case.target)
    guided = target.reshard(case, waypoints) if waypoints else alone
    greedy = greedy_path(table, case.source, case.target)
    return {
        "case": str(case),
        "predicted": _plain(foreseen(steps)),
        "compiled": _plain(by_kind(guided)),
        "agrees": agree(foreseen(steps), by_kind(guided)),
        "alone": _plain(by_kind(alone)),
        "alone_agrees": agree(foreseen(steps), by_kind(alone)),
        "seconds": sum(step.seconds for step in steps),
        "alone_seconds": seconds(case.mesh, alone),
        "greedy_seconds": sum(step.seconds for step in greedy),
    }


def _reductions(target: Target) -> Iterator[dict[str, Any]]:
    for shape in _MESHES:
        mesh = DeviceMesh.create(shape, "cpu" if target.name == "cpu" else "h100-sxm")
        for reduced in reduced_matmuls(mesh, target):
            yield _reduction_row(reduced)


def _reduction_row(found: Reduced) -> dict[str, Any]:
    reads = ", ".join(map(found.mesh.describe, found.strategy.reads))
    mesh = "x".join(map(str, found.mesh.shape))
    return {
        "case": f"{mesh} {reads} → {found.mesh.describe(found.strategy.results[0])}",
        "predicted": _plain(found.predicted),
        "compiled": _plain(found.compiled),
        "agrees": found.agrees,
        "idle_axis": found.idle,
    }


def _plain(uses: Uses) -> dict[str, list[int]]:
    """Returns [count, bytes] by kind."""
    return {kind: [use.count, use.bytes] for kind, use in sorted(uses.items())}


def _json(results: dict[str, Any]) -> str:
    """Returns the results as JSON with one row per line."""
    parts = [f'"environment": {json.dumps(results["environment"])}']
    for name in _TARGETS.value:
        lists = [
            f'"{key}": {_lines(results[name][key])}' for key in ("reshardings", "partial_sums")
        ]
        head = f'"seconds": {results[name]["seconds"]}'
        parts.append(f'"{name}": {{\n' + ",\n".join([head, *lists]) + "}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _lines(rows: Sequence[dict[str, Any]]) -> str:
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]"


if __name__ == "__main__":
    app.run(main)
