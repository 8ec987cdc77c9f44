"""Functions for a process with XLA:TPU, which compile a step completely."""

import re
from typing import Any

from benchmarks.tpu.generated import with_reserved_stack
from kiwi.xla.step import ExportedStep
from kiwi.xla.tpu.compiler import TPU_COMPILER_OPTIONS, TPU_REDUCING_OPTIONS, devices_of


def generated(step: ExportedStep, options: Any, folder: str) -> str:
    """Returns the error of code generation under the options of a run; empty if XLA generates
    code."""
    return _said(step, TPU_COMPILER_OPTIONS)


def generated_beside_sums(step: ExportedStep, options: Any, folder: str) -> list[str]:
    """Returns the errors of code generation with reductions in the background: without and with the
    stack that XLA reserves. An error is empty if XLA generates code."""
    reserved = with_reserved_stack(TPU_REDUCING_OPTIONS)
    return [_said(step, TPU_REDUCING_OPTIONS), _said(step, reserved)]


def _said(step: ExportedStep, options: Any) -> str:
    try:
        step.compile(devices_of(step.mesh), options)
    except Exception as error:
        return str(error)
    return ""


def minor_to_major(step: ExportedStep, options: Any, folder: str) -> list[list[int]]:
    """Returns the order of dimensions that XLA chooses for each argument, from minor to major."""
    text = step.compile(devices_of(step.mesh), TPU_COMPILER_OPTIONS).as_text()
    arguments = text.split("entry_computation_layout={(")[1].split(")->")[0]
    return [list(map(int, order.split(","))) for order in re.findall(r"{([\d,]+):", arguments)]
