"""XLA:GPU stores the results of hyperbolic tangents and other costly maps of 16-bit tensors.

To read a 16-bit tensor again takes less time than to compute `tanh` again. So the kernel of the
first reader also writes the map's result, and later readers read it, such as the gradient of a
`gelu`. The stored result has the dtype in which it is computed: float32 if a step computes
activations in float32 on bfloat16 operands. Maps of float32 operands, and cheaper maps (logistic,
exponential), are computed again by each reader (`maps_in_readers`).
"""

import jax
import jax.numpy as jnp

from kiwi.hlo.chains import Chains
from kiwi.targets.rule import Rule, fusing
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_COSTLY = frozenset({"atan2", "chlo.erfc", "log_plus_one", "tanh"})
"""The opcodes of the costly maps."""

_NARROW_BYTES = 2
"""The most bytes of an operand's element. Maps of wider operands are computed again."""


def is_costly_and_narrow(chains: Chains, index: int) -> bool:
    """Returns whether an equation is a costly map, and all tensors that its chain reads are
    narrow."""
    if not chains.graph.opcodes[index] & _COSTLY:
        return False
    values = chains.graph.program.values
    operands = [values[read] for read in chains.tensors(index)]
    return bool(operands) and all(value.itemsize <= _NARROW_BYTES for value in operands)


_ROWS, _WIDTH, _HIDDEN = 2048, 768, 4096


def _gradients(x: jax.Array, up: jax.Array, down: jax.Array) -> tuple[jax.Array, ...]:
    """Returns the gradients of a network with a gelu. The loss is not linear in the network's
    result, so that the backward pass must follow the forward pass."""

    def loss(up: jax.Array, down: jax.Array) -> jax.Array:
        result = jax.nn.gelu(x @ up) @ down
        return jnp.sum(jnp.square(result.astype(jnp.float32)))

    return jax.grad(loss, (0, 1))(up, down)


def _arguments(dtype: str) -> tuple[jax.ShapeDtypeStruct, ...]:
    shapes = ((_ROWS, _WIDTH), (_WIDTH, _HIDDEN), (_HIDDEN, _WIDTH))
    return tuple(array(*shape, dtype=dtype) for shape in shapes)


def _writes_both(module: InspectedModule) -> bool:
    """Returns whether a kernel with a `tanh` writes two tensors of the hidden layer's size."""
    return any(
        sum(result.elements == _ROWS * _HIDDEN for result in kernel.results) == 2
        for kernel in module.with_opcodes("tanh")
    )


WITNESS = Witness(
    says="The kernel that computes the `tanh` of a gelu in bfloat16 writes two tensors.",
    example=Example(_gradients, _arguments("bfloat16")),
    shows=_writes_both,
    control=Example(_gradients, _arguments("float32")),
)


RULE = Rule(
    name="costly_narrow_maps",
    does="The result of a tanh, an erfc, a log1p or an arctangent of 16-bit tensors is stored if "
    "several kernels read it.",
    component="PriorityFusion",
    observed="jax 0.10.2, H100",
    evidence=("tests/targets/test_costly_narrow_maps.py",),
    witness=WITNESS,
    states=fusing(stored=(is_costly_and_narrow,)),
    limits="Sines, powers and erfc of float32 are stored in some programs, and computed again in "
    "others.",
)
