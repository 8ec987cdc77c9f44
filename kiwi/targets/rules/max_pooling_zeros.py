"""The gradient of max pooling is added to zeros that depend on nothing.

The scheduler may write the zeros at the start of the step. A plan ties the zeros to their step with
a barrier (`kiwi.emit.interpreter`), so that they take only the memory of the result. XLA:TPU has a
kernel that needs no zeros.
"""

from kiwi.hlo.units import UnitGraph
from kiwi.kernels.kernel import HeldEarly
from kiwi.targets.max_pooling import FORWARD, GRADIENT, IMAGES, gradients
from kiwi.targets.rule import Rule, more_of_units
from kiwi.targets.witness import Witness
from kiwi.xla.read.inspected import InspectedModule


def _zeros(units: UnitGraph) -> dict[int, tuple[HeldEarly, ...]]:
    return {unit.index: (HeldEarly(unit.index + 1),) for unit in gradients(units)}


def _writes_zeros(module: InspectedModule) -> bool:
    zeros = [
        kernel
        for kernel in module.kernels
        if kernel.reads_nothing and kernel.writes(IMAGES.size, "f32")
    ]
    return len(zeros) == 1 and bool(module.with_opcodes("scatter"))


WITNESS = Witness(
    says="A kernel that reads nothing writes zeros as large as the images, and another scatters.",
    example=GRADIENT,
    shows=_writes_zeros,
    control=FORWARD,
)

RULE = Rule(
    name="max_pooling_zeros",
    does="The zeros that the gradient is added to exist from the start of the step, unless a "
    "barrier ties them to it.",
    component="SelectAndScatterExpander",
    observed="jax 0.10.2",
    evidence=(
        "tests/plans/test_memory.py",
        "tests/emit/test_max_pooling.py",
        "benchmarks/fidelity",
    ),
    witness=WITNESS,
    apply=more_of_units("held_early_without_barriers", _zeros),
)
