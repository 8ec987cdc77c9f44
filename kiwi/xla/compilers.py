"""What a planned step can be compiled for to check it: the targets of `verify`."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import jax

from kiwi.mesh import DeviceMesh
from kiwi.xla.attached import verify_on_device
from kiwi.xla.compiled_program import CompiledProgram
from kiwi.xla.gpu import check_available, verify_on_cuda
from kiwi.xla.step import Step, cpu_devices, verify_on_cpu
from kiwi.xla.worker import process_ahead

_CHECKS: Mapping[str, Callable[[Step], CompiledProgram]] = {
    "cpu": verify_on_cpu,
    "cuda": verify_on_cuda,
    "device": verify_on_device,
}

TARGETS = tuple(_CHECKS)
"""Names: virtual CPU devices; the profile's GPU, by XLA:GPU without a GPU; attached devices."""


def memory_model(target: str | None) -> str:
    """The compiler whose memory a plan should predict: "cpu" or "cuda".

    Without a check it is XLA:CPU's, on which a plan can be looked at everywhere.
    """
    if target == "device":
        return "cpu" if jax.default_backend() == "cpu" else "cuda"
    return target or "cpu"


def compile_for(target: str, step: Step) -> CompiledProgram:
    """Compiles `step` for one of `TARGETS`.

    **Raises:** `CompileCheckError` if the compilation fails, `CompilerUnavailableError` if there
    is no compiler for the target, `NotEnoughDevicesError` if "device" has too few.
    """
    return _CHECKS[target](step)


def prepared(target: str | None, mesh: DeviceMesh) -> AbstractContextManager[None]:
    """Inside, whatever `compile_for` has to start does so in the background.

    **Raises:** `CompilerUnavailableError` at once, and not after seconds of planning, if there
    is no compiler for the target.
    """
    if target == "cuda":
        check_available(mesh.hardware)
        return process_ahead()
    is_elsewhere = target == "cpu" and len(cpu_devices()) < mesh.size
    return process_ahead() if is_elsewhere else nullcontext()
