"""Measures all variants on the attached GPU, each in a process of its own.

A process of its own, because the allocator's peak is that of all its life, and because a variant
that does not fit must not take down the others.
"""

import datetime
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
from absl import app, flags

import kiwi
from benchmarks.device.timing import measure
from benchmarks.device.variants import BASE, REMATS, filling_batch, variants
from examples import gpt
from kiwi.mesh import hardware

_PROFILES = {"V100": "v100-sxm2", "A100": "a100-sxm", "H100": "h100-sxm", "H200": "h200-sxm"}

_OUT = flags.DEFINE_string("out", "benchmarks/device/results/device.json", "Where results go.")
_SHARES = flags.DEFINE_list("shares", ["90", "70", "50", "40"], "Budgets, in % of the peak.")
_RUNS = flags.DEFINE_integer("runs", 30, "Steps that are timed.")
_WARM_UP = flags.DEFINE_integer("warm_up", 3, "Steps before those.")
_SECONDS = flags.DEFINE_float("time_limit_seconds", 30.0, "For the solver, per plan.")
_BATCH = flags.DEFINE_integer("batch", 0, "Sequences per step; 0 fills the card.")
_ONLY = flags.DEFINE_integer("only", -1, "Measure the variant of this number, in this process.")


def main(_: list[str]) -> None:
    """Without a GPU: says so."""
    gpu = _attached_gpu()
    if gpu is None:
        print("No NVIDIA GPU is attached: nothing is measured.")
        return
    profile = _profile_of(gpu)
    if profile is None:
        print(f"{gpu.device_kind} is not in the hardware catalogue: nothing is measured.")
        return
    if _ONLY.value >= 0:
        print(json.dumps(_measure(_ONLY.value, profile)))
        return
    batch = _BATCH.value or filling_batch(_free_bytes(gpu, profile), profile)
    rows = [_in_a_process(k, batch) for k in range(len(REMATS) + len(_SHARES.value))]
    out = Path(_OUT.value)
    out.parent.mkdir(parents=True, exist_ok=True)
    results = {"environment": _environment(gpu, profile, batch), "rows": rows}
    out.write_text(json.dumps(results, indent=1) + "\n")


def _attached_gpu() -> Any:
    try:
        return jax.devices("gpu")[0]
    except RuntimeError:
        return None


def _profile_of(gpu: Any) -> str | None:
    kinds = (profile for kind, profile in _PROFILES.items() if kind in gpu.device_kind)
    return next(kinds, None)


def _free_bytes(gpu: Any, profile: str) -> int:
    stats = gpu.memory_stats() or {}
    return stats.get("bytes_limit", hardware(profile).memory_bytes)


def _in_a_process(number: int, batch: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.device", f"--only={number}", f"--batch={batch}"]
    command += [f"--{name}={flags.FLAGS[name].value}" for name in ("runs", "warm_up")]
    command += [f"--shares={','.join(_SHARES.value)}", f"--time_limit_seconds={_SECONDS.value}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"number": number, "error": done.stderr.strip().splitlines()[-1:]}
    print(done.stdout.strip(), flush=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def _measure(number: int, profile: str) -> dict[str, Any]:
    config = replace(BASE, batch=_BATCH.value)
    shares = [float(share) / 100 for share in _SHARES.value]
    runnable = variants(config, profile, shares, _SECONDS.value)[number]()
    leaves = jax.tree.leaves((gpt.make_state(config), gpt.make_batch(config)))
    measured = measure(runnable, leaves, runs=_RUNS.value, warm_up=_WARM_UP.value)
    figures = {k: v for k, v in asdict(runnable).items() if k not in ("run", "result_count")}
    return {**figures, **{f"measured_{k}": v for k, v in asdict(measured).items()}}


def _environment(gpu: Any, profile: str, batch: int) -> dict[str, Any]:
    return {
        "date": datetime.date.today().isoformat(),
        "device": gpu.device_kind,
        "driver": gpu.client.platform_version.splitlines()[0],
        "profile": profile,
        "jax": jax.__version__,
        "kiwi": kiwi.__version__,
        "model": asdict(replace(BASE, batch=batch)),
    }


if __name__ == "__main__":
    app.run(main)
