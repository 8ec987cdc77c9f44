"""XLA writes the result of a map over an operand of the same size that nothing reads afterwards.

The map must read the operand directly, and not through a barrier: `HeapSimulator` shares a buffer
only with a user of the instruction that defines it (`kiwi.hlo.in_place`).
"""

import jax
import jax.numpy as jnp
from jax import lax

from kiwi.hlo.in_place import overwritable
from kiwi.kernels.graph import KernelGraph
from kiwi.targets.rule import Rule
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_WIDTH = 512


def _apply(graph: KernelGraph) -> KernelGraph:
    units = graph.units
    return graph.stating(
        "overwritable", {unit.index: overwritable(units.graph, unit) for unit in units.units}
    )


def _sorted(x: jax.Array) -> jax.Array:
    """Returns a sort, which is a separate kernel under every compiler: no map is fused with it."""
    return lax.sort(x, dimension=0, is_stable=False)


def _mapped(x: jax.Array) -> jax.Array:
    return _sorted(jnp.sin(_sorted(x))).sum(0)


def _mapped_beside(x: jax.Array) -> jax.Array:
    before = _sorted(x)
    return (_sorted(jnp.sin(before)) + before).sum(0)


def _writes_over(module: InspectedModule) -> bool:
    (kernel,) = module.with_opcodes("sine")
    return module.is_in_place(kernel)


WITNESS = Witness(
    says="The buffer of the map takes the place of its operand's.",
    example=Example(_mapped, (array(_WIDTH, _WIDTH),)),
    shows=_writes_over,
    control=Example(_mapped_beside, (array(_WIDTH, _WIDTH),)),
)

RULE = Rule(
    name="overwritten_operands",
    does="The result of a map takes the buffer of an operand of the same size.",
    component="HeapSimulator",
    observed="jax 0.10.2; libtpu 0.0.42.1",
    evidence=("tests/plans/test_memory.py", "benchmarks/fidelity"),
    witness=WITNESS,
    apply=_apply,
)
