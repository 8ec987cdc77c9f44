"""Attention in a compiled program: kernels that are called, and arrays of the shape of scores."""

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
    """What the process for a compiler answers of a step whose sequences have so many tokens.

    **Raises:** as `Compiler.compile`.
    """
    answer, by = (on_tpu, tpu.TPU) if compiler == "tpu" else (on_gpu, gpu.GPU)
    found: dict[str, Any] = by.answer(step, answer)
    sizes = {tuple(map(int, dims)) for dims in found.pop("shapes")}
    scores = sorted(dims for dims in sizes if dims.count(sequence) >= 2)
    return {**found, "arrays_like_scores": [list(dims) for dims in scores]}


def on_tpu(step: ExportedStep, options: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Of XLA:TPU's program."""
    tpu.compiled_there(step, options, folder)
    return _read(folder, tpu.TPU.dump)


def on_gpu(step: ExportedStep, options: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Of XLA:GPU's program."""
    gpu.compiled_there(step, options, folder)
    return _read(folder, gpu.GPU.dump)


def _read(folder: str, dump: str) -> dict[str, Any]:
    (text,) = (path.read_text() for path in Path(folder).glob(f"*{dump}.txt"))
    shapes = {tuple(map(int, dims.split(","))) for dims in _ARRAY.findall(text)}
    return {"kernels": len(_KERNEL.findall(text)), "shapes": to_plain(sorted(shapes))}
