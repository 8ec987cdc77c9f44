"""What a process with XLA:TPU answers of a step that it compiles to the end."""

import re
from typing import Any

from benchmarks.tpu.generated import with_reserved_stack
from kiwi.xla.step import ExportedStep
from kiwi.xla.tpu.compiler import TPU_COMPILER_OPTIONS, TPU_REDUCING_OPTIONS, devices_of


def generated(step: ExportedStep, options: Any, folder: str) -> str:
    """Empty where XLA generates code, under the options of a run; else what it says."""
    return _said(step, TPU_COMPILER_OPTIONS)


def generated_beside_sums(step: ExportedStep, options: Any, folder: str) -> list[str]:
    """The same of a run whose sums are in the background; then with the stack that XLA reserves."""
    reserved = with_reserved_stack(TPU_REDUCING_OPTIONS)
    return [_said(step, TPU_REDUCING_OPTIONS), _said(step, reserved)]


def _said(step: ExportedStep, options: Any) -> str:
    try:
        step.compile(devices_of(step.mesh), options)
    except Exception as error:
        return str(error)
    return ""


def minor_to_major(step: ExportedStep, options: Any, folder: str) -> list[list[int]]:
    """The order of dimensions that XLA gives each argument."""
    text = step.compile(devices_of(step.mesh), TPU_COMPILER_OPTIONS).as_text()
    arguments = text.split("entry_computation_layout={(")[1].split(")->")[0]
    return [list(map(int, found.split(","))) for found in re.findall(r"{([\d,]+):", arguments)]
