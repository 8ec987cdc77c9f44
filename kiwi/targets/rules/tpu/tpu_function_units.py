"""A kernel on a TPU multiplies matrices and computes functions at the same time.

The MXU multiplies, while the VPU computes functions.
"""

import jax

from kiwi.hlo.large_operators import multiplies
from kiwi.kernels.graph import KernelGraph
from kiwi.targets.rule import Rule
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_ROWS, _WIDTH = 1024, 1024


def _apply(graph: KernelGraph) -> KernelGraph:
    hlo = graph.units.graph
    apart = {
        unit.index: frozenset(
            place for place, index in enumerate(unit.equations) if not multiplies(hlo, index)
        )
        for unit in graph.units.units
    }
    return graph.stating("functions_apart", apart)


def _polynomial(y: jax.Array) -> jax.Array:
    for _ in range(12):
        y = y * y + 0.5
    return y


def _apart(
    x: jax.Array, w: jax.Array, y: jax.Array, v: jax.Array, z: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns a matmul, an equal matmul with functions behind it, and the functions alone."""
    return x @ w, _polynomial(y @ v), _polynomial(z)


def _takes_no_longer(module: InspectedModule) -> bool:
    """Returns whether a matmul with functions takes less than three quarters of the cycles of the
    matmul and the functions one after the other."""
    product = [
        kernel for kernel in module.with_opcodes("convolution") if not kernel.computes("multiply")
    ]
    fused = module.with_opcodes("convolution", "multiply")
    functions = [
        kernel for kernel in module.with_opcodes("multiply") if not kernel.computes("convolution")
    ]
    if not (len(product) == len(fused) == len(functions) == 1):
        return False
    cycles = [kernels[0].cycles for kernels in (product, fused, functions)]
    stated_cycles = [stated for stated in cycles if stated is not None]
    return len(stated_cycles) == 3 and stated_cycles[1] < 0.75 * (
        stated_cycles[0] + stated_cycles[2]
    )


_MATRICES = (array(_ROWS, _WIDTH, dtype="bfloat16"), array(_WIDTH, _WIDTH, dtype="bfloat16")) * 2

WITNESS = Witness(
    says="A matmul with functions behind it is stated at less cycles than both one by one.",
    example=Example(
        _apart, (*_MATRICES, array(_ROWS, _WIDTH, dtype="bfloat16")), generates_code=True
    ),
    shows=_takes_no_longer,
    control=Example(
        lambda x, w, z: (x @ w, _polynomial(z)),
        (*_MATRICES[:2], array(_ROWS, _WIDTH, dtype="bfloat16")),
        generates_code=True,
    ),
)

RULE = Rule(
    name="tpu_function_units",
    does="A kernel multiplies matrices and computes functions at the same time, in units of their "
    "own.",
    component="hardware: MXU and VPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e: a matmul of (4096, 1024) by (1024, 1024) in "
    "bfloat16 is stated at 71 us with four GELUs behind it or none; these alone at 58 us",
    evidence=("tests/problem/test_costs.py",),
    witness=WITNESS,
    apply=_apply,
)
