"""What a planned step can be compiled for to check it: the targets of `verify`."""

from collections.abc import Callable, Mapping

import jax

from kiwi.plan.compiled import CompiledProgram
from kiwi.plan.cuda import verify_on_cuda
from kiwi.plan.device import verify_on_device
from kiwi.plan.verify import Step, verify_on_cpu

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
