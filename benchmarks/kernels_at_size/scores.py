"""Attention in a compiled program: kernel calls, and arrays with the shape of scores."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kiwi.codec import to_plain
from kiwi.xla.gpu import compiler as gpu
from kiwi.xla.step import ExportedStep, Step
from kiwi.xla.tpu import compiler as tpu

_ARRAY = re.compile(r"\b(?:pred|[a-z]+\d+)[a-z0-9]*\[([0-9,]+)\]")
_KERNEL = re.compile(r'custom_call_target="(tpu_custom_call|__cudnn\$fmha[^"]*)"')


def compiled(step: Step, compiler: str, sequence: int) -> dict[str, Any]:
    """Returns the kernel calls and the arrays like scores of a compiled step. `sequence`: the
    number of tokens of a sequence.

    **Raises:** as `Compiler.compile`.
    """
    answer, compiler_of_step = (on_tpu, tpu.TPU) if compiler == "tpu" else (on_gpu, gpu.GPU)
    program_facts: dict[str, Any] = compiler_of_step.answer(step, answer)
    sizes = {tuple(map(int, dims)) for dims in program_facts.pop("shapes")}
    scores = sorted(dims for dims in sizes if dims.count(sequence) >= 2)
    return {**program_facts, "arrays_like_scores": [list(dims) for dims in scores]}


def on_tpu(step: ExportedStep, options: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Returns the facts of XLA:TPU's program; runs in the process with XLA:TPU."""
    tpu.compiled_there(step, options, folder)
    return _read(folder, tpu.TPU.dump)


def on_gpu(step: ExportedStep, options: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Returns the facts of XLA:GPU's program; runs in the process with XLA:GPU."""
    gpu.compiled_there(step, options, folder)
    return _read(folder, gpu.GPU.dump)


def _read(folder: str, dump: str) -> dict[str, Any]:
    (text,) = (path.read_text() for path in Path(folder).glob(f"*{dump}.txt"))
    shapes = {tuple(map(int, dims.split(","))) for dims in _ARRAY.findall(text)}
    return {"kernels": len(_KERNEL.findall(text)), "shapes": to_plain(sorted(shapes))}
