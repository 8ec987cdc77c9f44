"""XLA:CPU holds the indices of all elements for the gradient of max pooling.

The window reduction that finds the selected elements reads one index per dimension and element. The
indices depend on nothing, so that the scheduler writes them at the start of the step. XLA:GPU
computes them inside the reduction.
"""

from kiwi.hlo.units import UnitGraph
from kiwi.kernels.kernel import HeldEarly
from kiwi.targets.max_pooling import FORWARD, GRADIENT, IMAGES, INDEX_BYTES, gradients
from kiwi.targets.rule import Rule, more_of_units
from kiwi.targets.witness import Witness
from kiwi.xla.read.inspected import InspectedModule


def _indices(units: UnitGraph) -> dict[int, tuple[HeldEarly, ...]]:
    held = {}
    for unit in gradients(units):
        value = units.graph.program.values[unit.outputs[0]]
        numerator = len(value.shape) * INDEX_BYTES
        held[unit.index] = (HeldEarly(unit.index + 1, numerator, value.itemsize),)
    return held


def _makes_indices_first(module: InspectedModule) -> bool:
    indices = [
        kernel for kernel in module.with_opcodes("iota") if kernel.writes(IMAGES.size, "s32")
    ]
    first_matmul = module.with_opcodes("dot")[0]
    return len(indices) == 4 and all(module.is_before(kernel, first_matmul) for kernel in indices)


WITNESS = Witness(
    says="Four arrays of indices are written before the first matmul of the step.",
    example=GRADIENT,
    shows=_makes_indices_first,
    control=FORWARD,
)

RULE = Rule(
    name="cpu_max_pooling_indices",
    does="The indices of all elements exist from the start of the step.",
    component="SelectAndScatterExpander of XLA:CPU",
    observed="jax 0.10.2",
    evidence=(
        "tests/plans/test_memory.py",
        "tests/emit/test_max_pooling.py",
        "benchmarks/fidelity",
    ),
    witness=WITNESS,
    apply=more_of_units("held_early", _indices),
)
