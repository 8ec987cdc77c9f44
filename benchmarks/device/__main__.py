"""Measures all variants on the attached GPU, those of each model in a process of its own.

The smallest first, because the allocator's peak is that of all the process's life; and a process
of its own, because a model that does not fit must not take down the others.
"""

import datetime
import gzip
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
from absl import app, flags

import kiwi
from benchmarks.device.models import BY_HAND, FREE, MODELS, TRACED, arguments, by_hand, plan_file
from benchmarks.device.timing import measure, traced
from benchmarks.emission.variants import plain_step
from benchmarks.provenance import commit
from benchmarks.timed_step import Training
from kiwi.plans.record import place_leaves
from kiwi.xla.gpu.compiler import GPU
from kiwi.xla.read.compiled_program import CompiledProgram, read_compiled
from kiwi.xla.simulated import simulated
from kiwi.xla.step import Step

_PLANS = flags.DEFINE_string("plans", "plans", "The folder of `benchmarks.device.plans`.")
_OUT = flags.DEFINE_string("out", "benchmarks/device/results/device.json", "Where results go.")
_TRACES = flags.DEFINE_string(
    "traces", None, "A folder for times of kernels, and programs that are not those of the check."
)
_NAMES = flags.DEFINE_list("models", list(MODELS), "Which ones.")
_RUNS = flags.DEFINE_integer("runs", 9, "Timings of each variant.")
_ONLY = flags.DEFINE_string("only", None, "Measure this model, in this process.")

_NO_GRAPHS = {"xla_gpu_enable_command_buffer": ""}
"""Kernels of a CUDA graph do not tell which instruction they are of."""

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Variant:
    """A way to run a model: what is known of it, and its step as compiled."""

    name: str
    row: Row
    step: Step
    compiled: Any
    program: CompiledProgram


def main(_: list[str]) -> None:
    """Without a GPU: says so."""
    if (name := _ONLY.value) is not None:
        for row in _measured(name):
            print(json.dumps(row), flush=True)
        return
    device = _attached_gpu()
    if device is None:
        print("No NVIDIA GPU is attached: nothing is measured.")
        return
    out = Path(_OUT.value)
    out.parent.mkdir(parents=True, exist_ok=True)
    found = json.loads(out.read_text()) if out.exists() else {}
    for name in _NAMES.value:
        found[name] = {"environment": _environment(device), "rows": list(_elsewhere(name))}
        out.write_text(json.dumps(found, indent=1) + "\n")


def _attached_gpu() -> str | None:
    """Asked in a process of its own, which gives the card's memory back."""
    ask = "import jax; print(jax.devices('gpu')[0].device_kind)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False)
    return done.stdout.strip().splitlines()[-1] if done.returncode == 0 else None


def _environment(device: str) -> Row:
    return {
        "command": " ".join(["python -m benchmarks.device", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "device": device,
        "jax": jax.__version__,
        "kiwi": kiwi.__version__,
    }


def _elsewhere(name: str) -> Iterator[Row]:
    command = [sys.executable, "-m", "benchmarks.device", f"--only={name}"]
    command += [f"--{flag}={flags.FLAGS[flag].value}" for flag in ("plans", "runs")]
    command += [f"--traces={_TRACES.value}"] if _TRACES.value else []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            print(name, line.strip(), flush=True)
            yield json.loads(line)
    if process.wait():
        yield {"error": f"exit status {process.returncode}"}


def _measured(name: str) -> Iterator[Row]:
    """The rows of a model, by size."""
    for variant in sorted(_compiled(name), key=lambda each: each.program.peak_bytes):
        yield {"variant": variant.name, **_run(name, variant)}


def _compiled(name: str) -> list[Variant]:
    """Compiled all at once: that takes longer than running."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda each: _compile(*each), list(_steps(name))))


def _steps(name: str) -> Iterator[tuple[str, Row, Step, Mapping[str, Any]]]:
    """Each variant's name, what is known of it, its step, and the options that it runs with."""
    case, folder = MODELS[name], Path(_PLANS.value)
    rows: dict[str, Row] = json.loads((folder / f"{name}.json").read_text())
    plans = {
        key: kiwi.load_plan(folder / plan_file(name, key))
        .apply(case.train_step())
        .plan(*case.arguments)
        for key, row in rows.items()
        if key not in BY_HAND and "refused" not in row
    }
    for key, row in rows.items():
        if key in plans:
            step, options = plans[key].step_for(GPU), plans[key].run_options(GPU)
        elif key in BY_HAND:
            step, options = plain_step(plans[FREE], by_hand(case, BY_HAND[key])), {}
        else:
            continue
        yield key, row, step, options
        if key == FREE and _TRACES.value:
            yield TRACED, row, step, {**options, **_NO_GRAPHS}


def _compile(variant: str, row: Row, step: Step, options: Mapping[str, Any]) -> Variant:
    started = time.monotonic()
    compiled = step.compile(jax.devices(), options)
    seconds = time.monotonic() - started
    return Variant(
        variant, row, step, compiled, read_compiled(compiled, step.mesh, "device", seconds)
    )


def _run(name: str, variant: Variant) -> Row:
    step, program = variant.step, variant.program
    assert program.schedule is not None
    time_found = simulated(program.schedule, step.mesh, step.kernel_seconds)
    row = {
        **variant.row,
        "compiled_peak_bytes": program.peak_bytes,
        "compile_seconds": program.compile_seconds,
        "simulated_step_seconds": time_found.step_seconds,
    }
    if _TRACES.value and row.get("check_peak_bytes", program.peak_bytes) != program.peak_bytes:
        _write(f"{plan_file(name, variant.name)}.hlo.gz", variant.compiled.as_text())
    state, batch = arguments(MODELS[name])
    count = len(jax.tree.leaves(state))
    leaves = jax.tree.leaves((state, batch))
    leaves = place_leaves(leaves, step.argument_shardings(step.mesh.jax_mesh(jax.devices())))
    try:
        training = Training(variant.compiled, leaves, count)
        del state, batch, leaves
        measured = measure(training, runs=_RUNS.value)
    except jax.errors.JaxRuntimeError as error:
        return {**row, "error": str(error).splitlines()[0]}
    if variant.name == TRACED and _TRACES.value:
        trace = {"text": variant.compiled.as_text(), "kernels": traced(training)}
        _write(f"{plan_file(name, TRACED)}.json.gz", json.dumps(trace))
    return {**row, **{f"measured_{k}": v for k, v in asdict(measured).items()}}


def _write(name: str, text: str) -> None:
    """Compressed, into the folder of traces."""
    folder = Path(_TRACES.value)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(gzip.compress(text.encode()))


if __name__ == "__main__":
    app.run(main)
