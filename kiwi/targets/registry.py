"""The targets that Kiwi knows, by name and by the backend of their devices."""

from kiwi.hlo.units import UnitGraph
from kiwi.kernels.graph import KernelGraph
from kiwi.mesh import Hardware
from kiwi.targets.cpu import CPU
from kiwi.targets.gpu import GPU
from kiwi.targets.target import Target
from kiwi.targets.tpu import TPU
from kiwi.xla.compilers import named, of_platform

TARGETS = {target.name: target for target in (CPU, GPU, TPU)}
"""By name."""


def target_named(name: str) -> Target:
    """The target of the compiler that `verify` names; raises `InvalidArgumentError` for another
    name."""
    return TARGETS[named(name).name]


def target_of(hardware: Hardware) -> Target:
    """The target of such devices; raises `CompilerUnavailableError` if Kiwi has no rules for
    them."""
    return TARGETS[of_platform(hardware.backend).name]


def predicted_target(verify: str | None, hardware: Hardware) -> Target:
    """The target whose kernels a plan predicts: of the compiler that checks, or, without a check,
    that of the hardware.

    **Raises:** as `target_named` and `target_of`.
    """
    return target_of(hardware) if verify is None else target_named(verify)


def regrouped(kernels: KernelGraph, units: UnitGraph) -> KernelGraph:
    """What the same target runs on the same devices for other units."""
    return TARGETS[kernels.facts.target].kernels(units, kernels.hardware)
