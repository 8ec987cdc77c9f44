"""The registry of targets, by name and by the backend of their devices."""

from kiwi.errors import CompilerUnavailableError
from kiwi.hlo.units import UnitGraph
from kiwi.kernels.graph import KernelGraph
from kiwi.mesh import Hardware
from kiwi.targets.cpu import CPU
from kiwi.targets.gpu import GPU
from kiwi.targets.target import Target
from kiwi.targets.tpu import TPU
from kiwi.xla.compilers import named, of_platform

TARGETS = {target.name: target for target in (CPU, GPU, TPU)}
"""All targets, by the name that `verify` takes."""


def target_named(name: str) -> Target:
    """Returns the target of the compiler that `verify` calls `name`.

    **Raises:** `InvalidArgumentError` for an unknown name.
    """
    return TARGETS[named(name).name]


def target_of(hardware: Hardware) -> Target:
    """Returns the target of devices of this kind.

    **Raises:** `CompilerUnavailableError` if Kiwi has no rules for their backend.
    """
    return TARGETS[of_platform(hardware.backend).name]


def planned_target(verify: str | None, hardware: Hardware) -> Target:
    """Returns the target whose kernels a plan predicts.

    The hardware decides the target, whichever compiler checks the plan. If Kiwi has no rules for
    the hardware, the target is the one that `verify` names.

    **Raises:** `CompilerUnavailableError` if Kiwi has no rules for the hardware and `verify` is
    None; `InvalidArgumentError` if it has none and `verify` is an unknown name.
    """
    try:
        return target_of(hardware)
    except CompilerUnavailableError:
        if verify is None:
            raise
        return target_named(verify)


def is_own_compiler(verify: str | None, hardware: Hardware) -> bool:
    """Returns whether `verify` names the compiler of the planned target.

    **Raises:** as `target_named` and `planned_target`.
    """
    return verify is not None and target_named(verify) is planned_target(verify, hardware)


def regrouped(kernels: KernelGraph, units: UnitGraph) -> KernelGraph:
    """Returns the kernels that the target of `kernels` runs for other `units` on the same
    hardware."""
    return TARGETS[kernels.facts.target].kernels(units, kernels.hardware)
