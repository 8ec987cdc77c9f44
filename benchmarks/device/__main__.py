"""Measures all variants on the attached GPU, with one process per model.

A process runs the variants in order of their size, because the allocator's peak is the peak of the
process's whole life. Each model has its own process, because a model that does not fit must not end
the others.
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
"""Compiler options without CUDA graphs: the kernels of a graph do not say which instruction they
belong to."""

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Variant:
    """A way to run a model: the known part of its row, and its compiled step."""

    name: str
    row: Row
    step: Step
    compiled: Any
    program: CompiledProgram


def main(_: list[str]) -> None:
    """Measures all models, or the model of `--only`. Without a GPU it says so and measures
    nothing."""
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
    results = json.loads(out.read_text()) if out.exists() else {}
    for name in _NAMES.value:
        results[name] = {"environment": _environment(device), "rows": list(_elsewhere(name))}
        out.write_text(json.dumps(results, indent=1) + "\n")


def _attached_gpu() -> str | None:
    """Returns the kind of the attached GPU; None if there is none. A process of its own asks, and
    then gives the card's memory back."""
    script = "import jax; print(jax.devices('gpu')[0].device_kind)"
    completed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    return completed.stdout.strip().splitlines()[-1] if completed.returncode == 0 else None


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
    """Yields the rows of a model, smallest compiled peak first."""
    for variant in sorted(
        _compiled(name), key=lambda variant_of_model: variant_of_model.program.peak_bytes
    ):
        yield {"variant": variant.name, **_run(name, variant)}


def _compiled(name: str) -> list[Variant]:
    """Compiles all variants in parallel, because compiling takes longer than running."""
    with ThreadPoolExecutor(8) as pool:
        return list(
            pool.map(
                lambda arguments_of_variant: _compile(*arguments_of_variant), list(_steps(name))
            )
        )


def _steps(name: str) -> Iterator[tuple[str, Row, Step, Mapping[str, Any]]]:
    """Yields, for each variant, its name, the known part of its row, its step, and its compiler
    options."""
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
    simulation = simulated(program.schedule, step.mesh, step.kernel_seconds)
    row = {
        **variant.row,
        "compiled_peak_bytes": program.peak_bytes,
        "compile_seconds": program.compile_seconds,
        "simulated_step_seconds": simulation.step_seconds,
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
    """Writes a compressed text into the folder of traces."""
    folder = Path(_TRACES.value)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(gzip.compress(text.encode()))


if __name__ == "__main__":
    app.run(main)
