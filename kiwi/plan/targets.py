"""What a planned step can be compiled for to check it: the targets of `verify`."""

from collections.abc import Callable, Mapping

from kiwi.plan.compiled import CompiledProgram
from kiwi.plan.verify import Step, verify_on_cpu

_CHECKS: Mapping[str, Callable[[Step], CompiledProgram]] = {"cpu": verify_on_cpu}

TARGETS = tuple(_CHECKS)


def compile_for(target: str, step: Step) -> CompiledProgram:
    """Compiles `step` for one of `TARGETS`.

    **Raises:** `CompileCheckError` if the compilation fails.
    """
    return _CHECKS[target](step)
