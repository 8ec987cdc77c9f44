"""The targets that Kiwi knows, by name and by the backend of their devices."""

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
"""The targets by name."""


def target_named(name: str) -> Target:
    """The target of the compiler that `verify` names; raises `InvalidArgumentError` for another
    name."""
    return TARGETS[named(name).name]


def target_of(hardware: Hardware) -> Target:
    """The target of such devices; raises `CompilerUnavailableError` if Kiwi has no rules for
    them."""
    return TARGETS[of_platform(hardware.backend).name]


def planned_target(verify: str | None, hardware: Hardware) -> Target:
    """The target whose kernels a plan predicts: that of the hardware, whoever checks the plan. For
    hardware without rules it is the target of the compiler that checks.

    **Raises:** as `target_named` and `target_of`.
    """
    try:
        return target_of(hardware)
    except CompilerUnavailableError:
        if verify is None:
            raise
        return target_named(verify)


def is_own_compiler(verify: str | None, hardware: Hardware) -> bool:
    """Whether `verify` names the compiler that the plan is made for; raises as `planned_target`."""
    return verify is not None and target_named(verify) is planned_target(verify, hardware)


def regrouped(kernels: KernelGraph, units: UnitGraph) -> KernelGraph:
    """The kernels of the same target and devices for other units."""
    return TARGETS[kernels.facts.target].kernels(units, kernels.hardware)
