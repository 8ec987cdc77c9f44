"""XLA's text of a step after Shardy has laid out what the caller leaves open.

In this process where it has enough CPU devices, else in a process of its own.
"""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kiwi.errors import CompileCheckError
from kiwi.messages import topics
from kiwi.xla.compile.worker import begun_elsewhere
from kiwi.xla.cpu.compiler import CPU_CHECK_OPTIONS, cpu_devices, virtual_devices
from kiwi.xla.step import ExportedStep, Step

_SHARDY = "shardy-xla"
"""XLA's pass that propagates shardings."""


def propagated_text_on_cpu(step: Step) -> str:
    """XLA's text of a step after Shardy has laid out what `in_specs` and `out_specs` leave open;
    raises `CompileCheckError` if the compilation fails."""
    devices = cpu_devices()
    if len(devices) < step.mesh.size:
        return begun_elsewhere(propagated_there, step, "cpu")()
    with tempfile.TemporaryDirectory(prefix="shardy-") as folder:
        unique = replace(step, function=_named(step.function, Path(folder).name))
        unique.compile(devices, _options(folder))
        return _read(folder)


def propagated_there(step: ExportedStep, options: Mapping[str, Any], folder: str) -> str:
    """The answer of the process: the text."""
    step.compile(virtual_devices(step.mesh.size), _options(folder))
    return _read(folder)


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function under a name of its own, so that no compilation cache answers for it: a cached
    program comes without the text. The name is none of `kiwi.xla.read.name_scopes`."""

    def renamed(*arguments: Any) -> Any:
        return function(*arguments)

    renamed.__name__ = name.replace("-", "_")
    return renamed


def _options(folder: str) -> dict[str, Any]:
    """Compiler options with which XLA writes its text before and after Shardy to a folder."""
    return {
        **CPU_CHECK_OPTIONS,
        "xla_dump_to": folder,
        "xla_dump_hlo_as_text": True,
        "xla_dump_hlo_pass_re": _SHARDY,
    }


def _read(folder: str) -> str:
    """The text after Shardy, from the folder that XLA wrote it to; raises `CompileCheckError` if
    there is none."""
    found = sorted(Path(folder).glob(f"*.after_{_SHARDY}.*"))
    if not found:
        raise CompileCheckError(
            "XLA did not write what Shardy propagates.",
            topic=topics.NO_SHARDY,
        )
    return found[-1].read_text()
