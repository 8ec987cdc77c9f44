"""What a process with XLA:TPU answers of a step that it compiles to the end."""

from typing import Any

from kiwi.xla.step import ExportedStep
from kiwi.xla.tpu.compiler import TPU_COMPILER_OPTIONS, devices_of


def generated(step: ExportedStep, options: Any, folder: str) -> str:
    """Empty where XLA generates code, under the options of a run; else what it says."""
    try:
        step.compile(devices_of(step.mesh), TPU_COMPILER_OPTIONS)
    except Exception as error:
        return str(error)
    return ""
