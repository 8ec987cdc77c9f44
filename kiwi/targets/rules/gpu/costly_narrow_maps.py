"""XLA:GPU stores hyperbolic tangents and other costly maps of 16-bit tensors.

Reading an operand of two bytes again takes less time than computing `tanh` of it again. So the
kernel of the first reader writes the map's result beside its own, and later readers, as the
gradient of a `gelu`, read it. The result has the type that it is computed in: four bytes where a
step computes activations in float32 on bfloat16 operands. Of float32 operands, and of cheaper maps
(logistic, exponential), each reader computes the map again (`maps_in_readers`).
"""

import jax
import jax.numpy as jnp

from kiwi.hlo.chains import Chains
from kiwi.targets.rule import Rule, fusing
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_COSTLY = frozenset({"atan2", "chlo.erfc", "log_plus_one", "tanh"})
_NARROW_BYTES = 2


def is_costly_and_narrow(chains: Chains, index: int) -> bool:
    """Whether an equation is such a map, and the tensors that it is computed from are narrow."""
    if not chains.graph.opcodes[index] & _COSTLY:
        return False
    values = chains.graph.program.values
    operands = [values[read] for read in chains.tensors(index)]
    return bool(operands) and all(value.itemsize <= _NARROW_BYTES for value in operands)


_ROWS, _WIDTH, _HIDDEN = 2048, 768, 4096


def _gradients(x: jax.Array, up: jax.Array, down: jax.Array) -> tuple[jax.Array, ...]:
    """Of a network whose backward pass begins once its result is known."""

    def loss(up: jax.Array, down: jax.Array) -> jax.Array:
        result = jax.nn.gelu(x @ up) @ down
        return jnp.sum(jnp.square(result.astype(jnp.float32)))

    return jax.grad(loss, (0, 1))(up, down)


def _arguments(dtype: str) -> tuple[jax.ShapeDtypeStruct, ...]:
    shapes = ((_ROWS, _WIDTH), (_WIDTH, _HIDDEN), (_HIDDEN, _WIDTH))
    return tuple(array(*shape, dtype=dtype) for shape in shapes)


def _writes_both(module: InspectedModule) -> bool:
    """Whether a kernel with a `tanh` writes two tensors of the hidden layer's size."""
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
