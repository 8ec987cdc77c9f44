"""XLA's text of a step after Shardy has laid out what the caller leaves open.

In this process where it has enough CPU devices, else in a process of its own. The compilation ends
behind Shardy: the step gets one more result, by a function with a partitioning of its own
(`jax.experimental.custom_partitioning`), which XLA's next pass asks for and which raises an error.
What follows, code for virtual devices above all, would take ten times as long.
"""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import custom_partitioning

from kiwi.errors import CompileCheckError
from kiwi.messages import topics
from kiwi.xla.compile.worker import begun_elsewhere
from kiwi.xla.cpu.compiler import CPU_CHECK_OPTIONS, cpu_devices, virtual_devices
from kiwi.xla.step import ExportedStep, Step

_SHARDY = "shardy-xla"
"""XLA's pass that propagates shardings."""

_ENDED = "The shardings are propagated; XLA need not go on."


def propagated_text_on_cpu(step: Step) -> str:
    """XLA's text of a step after Shardy has laid out what `in_specs` and `out_specs` leave open;
    raises `CompileCheckError` if the compilation fails."""
    devices = cpu_devices()
    if len(devices) < step.mesh.size:
        return begun_elsewhere(propagated_there, step, "cpu")()
    with tempfile.TemporaryDirectory(prefix="shardy-") as folder:
        function, specs = _ending(step.function), [*step.out_specs, None]
        ending = replace(step, function=function, out_specs=specs)
        return _text(lambda: ending.compile(devices, _options(folder)), folder)


def propagated_there(step: ExportedStep, options: Mapping[str, Any], folder: str) -> str:
    """The answer of the process: the text."""
    devices = virtual_devices(step.mesh.size)
    return _text(lambda: step.compile(devices, _options(folder), _end), folder)


def _ending(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the result that ends its compilation. No compilation cache has it."""

    def ending(*arguments: Any) -> Any:
        return [*function(*arguments), _end()]

    return ending


def _end() -> jax.Array:
    """A value of no use, at whose partitioning XLA ends."""
    return _ends_compilation(jnp.zeros((1,)))


@custom_partitioning
def _ends_compilation(x: jax.Array) -> jax.Array:
    return x


def _refuse(*_: Any) -> Any:
    raise RuntimeError(_ENDED)


_ends_compilation.def_partition(partition=_refuse, sharding_rule="i -> i")


def _text(compiling: Callable[[], object], folder: str) -> str:
    """The text after Shardy that a compilation writes to a folder; raises `CompileCheckError` if
    the compilation fails before."""
    try:
        compiling()
    except jax.errors.JaxRuntimeError as error:
        # XLA's message may cut off the one of `_refuse`, so the text is asked for.
        if not (text := _written(folder)):
            raise CompileCheckError(
                f"XLA does not propagate shardings: {error}", topic=topics.NO_SHARDY
            ) from error
        return text
    if not (text := _written(folder)):
        raise CompileCheckError("XLA did not write what Shardy propagates.", topic=topics.NO_SHARDY)
    return text


def _written(folder: str) -> str:
    """The text after Shardy in a folder; empty if XLA has written none."""
    paths = sorted(Path(folder).glob(f"*.after_{_SHARDY}.*"))
    return paths[-1].read_text() if paths else ""


def _options(folder: str) -> dict[str, Any]:
    """Compiler options with which XLA writes its text before and after Shardy to a folder."""
    return {
        **CPU_CHECK_OPTIONS,
        "xla_dump_to": folder,
        "xla_dump_hlo_as_text": True,
        "xla_dump_hlo_pass_re": _SHARDY,
    }
