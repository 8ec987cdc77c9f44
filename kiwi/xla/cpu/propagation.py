"""The text of a step after Shardy has propagated its shardings.

The step is compiled in this process if it has enough CPU devices, and otherwise in a separate
process. The compilation stops right after Shardy, since the remaining passes take most of the time.
To stop it, the step gets one more result, computed by a function with its own partitioning
(`jax.experimental.custom_partitioning`). The pass after Shardy calls this partitioning, which
raises an error.
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
"""The name of XLA's pass that propagates shardings."""

_ENDED = "The shardings are propagated; XLA need not go on."


def propagated_text_on_cpu(step: Step) -> str:
    """Returns XLA's text of a step after Shardy has chosen the shardings that `in_specs` and
    `out_specs` leave open.

    **Raises:** `CompileCheckError` if the compilation fails before or in Shardy.
    """
    devices = cpu_devices()
    if len(devices) < step.mesh.size:
        return begun_elsewhere(propagated_there, step, "cpu")()
    with tempfile.TemporaryDirectory(prefix="shardy-") as folder:
        function, specs = _ending(step.function), [*step.out_specs, None]
        ending = replace(step, function=function, out_specs=specs)
        return _text(lambda: ending.compile(devices, _options(folder)), folder)


def propagated_there(step: ExportedStep, options: Mapping[str, Any], folder: str) -> str:
    """Runs in the separate process. Returns XLA's text of the step after Shardy."""
    devices = virtual_devices(step.mesh.size)
    return _text(lambda: step.compile(devices, _options(folder), _end), folder)


def _ending(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function with one more result, which ends its compilation. The failing program is
    never in a compilation cache."""

    def ending(*arguments: Any) -> Any:
        return [*function(*arguments), _end()]

    return ending


def _end() -> jax.Array:
    """Returns an unused value whose partitioning ends the compilation."""
    return _ends_compilation(jnp.zeros((1,)))


@custom_partitioning
def _ends_compilation(x: jax.Array) -> jax.Array:
    return x


def _refuse(*_: Any) -> Any:
    raise RuntimeError(_ENDED)


_ends_compilation.def_partition(partition=_refuse, sharding_rule="i -> i")


def _text(compiling: Callable[[], object], folder: str) -> str:
    """Runs `compiling`, and returns the text after Shardy that XLA writes to `folder`.

    **Raises:** `CompileCheckError` if the compilation fails before XLA writes the text.
    """
    try:
        compiling()
    except jax.errors.JaxRuntimeError as error:
        # The error is expected from `_refuse`, but XLA may truncate its message. The text in the
        # folder shows that Shardy has finished.
        if not (text := _written(folder)):
            raise CompileCheckError(
                f"XLA does not propagate shardings: {error}", topic=topics.NO_SHARDY
            ) from error
        return text
    if not (text := _written(folder)):
        raise CompileCheckError("XLA did not write what Shardy propagates.", topic=topics.NO_SHARDY)
    return text


def _written(folder: str) -> str:
    """Returns the text after Shardy in a folder; "" if XLA has written none."""
    paths = sorted(Path(folder).glob(f"*.after_{_SHARDY}.*"))
    return paths[-1].read_text() if paths else ""


def _options(folder: str) -> dict[str, Any]:
    """Returns the compiler options with which XLA writes the text before and after Shardy to
    `folder`."""
    return {
        **CPU_CHECK_OPTIONS,
        "xla_dump_to": folder,
        "xla_dump_hlo_as_text": True,
        "xla_dump_hlo_pass_re": _SHARDY,
    }
