"""Figures of a compiled step, read from the program that XLA writes before it generates code."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.emission.kernels import fingerprint, totals
from kiwi.codec import from_plain
from kiwi.xla.gpu import compiler as gpu
from kiwi.xla.read.compiled_program import CompiledProgram
from kiwi.xla.step import ExportedStep, Step
from kiwi.xla.tpu import compiler as tpu

Figures = dict[str, Any]

CYCLES = ("cycles", "recomputed_cycles")
"""Figures that XLA:TPU states only after code generation."""


def figures(step: Step, compiler: str) -> Figures:
    """Returns the figures of a step as compiled for the mesh's hardware.

    **Raises:** as `Compiler.compile`.
    """
    if compiler == "tpu":
        return tpu.TPU.answer(step, tpu_figures)
    assert compiler == "cuda"
    return gpu.GPU.answer(step, gpu_figures)


def tpu_cycles(step: Step) -> Figures:
    """Returns the cycles of all kernels, and of recomputed kernels, by XLA:TPU's cost model.

    XLA:TPU generates code with the options of a run, which takes minutes and places some buffers in
    VMEM.
    """
    return tpu.TPU.answer(step, cycles_there)


def gpu_figures(step: ExportedStep, options: Mapping[str, Any], folder: str) -> Figures:
    """Returns the figures from the process with XLA:GPU."""
    return _of(gpu.compiled_there(step, options, folder), folder, gpu.GPU.dump)


def tpu_figures(step: ExportedStep, options: Mapping[str, Any], folder: str) -> Figures:
    """Returns the figures from the process with XLA:TPU."""
    return _of(tpu.compiled_there(step, options, folder), folder, tpu.TPU.dump)


def cycles_there(step: ExportedStep, options: Mapping[str, Any], folder: str) -> Figures:
    """Returns the cycles from the process with XLA:TPU, after code generation."""
    compiled = step.compile(tpu.devices_of(step.mesh), tpu.TPU.asked(options).run_options)
    all_totals = totals(compiled.as_text())
    return {key: all_totals[key] for key in CYCLES}


def _of(answer: Any, folder: str, dump: str) -> Figures:
    program = from_plain(answer, CompiledProgram)
    (text,) = (path.read_text() for path in Path(folder).glob(f"*{dump}.txt"))
    all_totals = totals(text)
    return {
        **{key: value for key, value in all_totals.items() if key not in CYCLES},
        "collectives": sum(use.count for use in program.collective_uses),
        "collective_bytes": program.collective_bytes,
        "temporary_bytes": program.temporary_bytes,
        "peak_bytes": program.peak_bytes,
        "program": fingerprint(text),
    }
