"""XLA:CPU computes the operand of a window in a separate kernel, which may write over its own
operand."""

import jax
import jax.numpy as jnp
from jax import lax

from kiwi.hlo.in_place import overwritable_by_operand
from kiwi.kernels.graph import KernelGraph
from kiwi.targets.rule import Rule
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_WIDTH = 256


def _apply(graph: KernelGraph) -> KernelGraph:
    units = graph.units
    return graph.adding(
        "overwritable",
        {unit.index: overwritable_by_operand(units.graph, unit) for unit in units.units},
    )


def _pooled(x: jax.Array) -> jax.Array:
    return lax.reduce_window(jnp.sin(x), 0.0, lax.add, (2, 2), (2, 2), "VALID")


def _writes_over(module: InspectedModule) -> bool:
    is_apart = not any(kernel.computes("reduce-window") for kernel in module.with_opcodes("sine"))
    return is_apart and module.temporaries_of(4 * _WIDTH**2) == 1


_MATRICES = (array(_WIDTH, _WIDTH),) * 2

WITNESS = Witness(
    says="The sine in front of the window is a kernel of its own, and takes the product's buffer.",
    example=Example(lambda x, w: _pooled(x @ w), _MATRICES),
    shows=_writes_over,
    # The product is read again.
    control=Example(lambda x, w: (_pooled(x @ w), (x @ w).sum(0)), _MATRICES),
)

RULE = Rule(
    name="cpu_windowed_operands",
    does="The operand of a window is computed apart, and may be written over what it maps.",
    component="ReduceWindowRewriter and IR emission of XLA:CPU",
    observed="jax 0.10.2",
    evidence=("tests/plans/test_memory.py",),
    witness=WITNESS,
    apply=_apply,
)
