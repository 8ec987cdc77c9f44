"""XLA:TPU computes a map in each convolution that reads it.

The map must not be the epilogue of a library call whose result it alone reads. Two kinds of maps
are computed so:

- Maps whose operands take no more bytes than the result, such as a normalisation and its
  activation. All other readers compute such a map again, too.
- Maps of the backward pass that only convolutions and reductions read, if the operands take at
  most twice the bytes of the result.
"""

import jax
import jax.numpy as jnp
from jax import lax

from kiwi.hlo.chains import Chains
from kiwi.hlo.graph import Phase
from kiwi.targets.rule import Rule, fusing
from kiwi.targets.witness import Example, Witness, array, convolved
from kiwi.xla.read.inspected import InspectedModule

_NOT_REPEATED = frozenset({"concatenate", "cosine", "reverse", "sine", "slice", "tan"})
"""Opcodes that are not fused with convolutions that read them."""

_SUMMING = frozenset({"convolution", "reduce"})

_MOST_READ = 2
"""The most bytes of the operands of a map that only convolutions and reductions read, as a multiple
of the bytes of its result. The result of a map with larger operands is stored."""


def is_in_convolutions(chains: Chains, index: int) -> bool:
    """Returns whether the convolutions that read an equation's result compute it."""
    members, opcodes = chains.members(index), chains.graph.opcodes
    if any(opcodes[member] & _NOT_REPEATED for member in members):
        return False
    if any(chains.ends_call(members, value) for value in chains.tensors(index)):
        return False
    readers = chains.readers(index)
    if not any("convolution" in opcodes[reader] for reader in readers):
        return False
    if chains.is_as_small(index):
        return True
    if chains.graph.phase_of(index) is Phase.FORWARD or not chains.is_as_small(index, _MOST_READ):
        return False
    return all(opcodes[reader] & _SUMMING for reader in readers)


def _residual(x: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
    """Returns the sum of a normalised, rectified convolution and a convolution of it."""
    y = convolved(x, first)
    y = jnp.maximum(y - y.mean((0, 1, 2)), 0.0)
    return y + convolved(y, second)


def _maps_inside(module: InspectedModule) -> bool:
    return bool(module.with_opcodes("convolution", "subtract", "maximum"))


_ARGUMENTS = array(4, 32, 32, 64), array(3, 3, 64, 64), array(3, 3, 64, 64)

WITNESS = Witness(
    says="One kernel subtracts the mean, rectifies and convolves. A sum reads the map, too.",
    example=Example(_residual, _ARGUMENTS),
    shows=_maps_inside,
    control=Example(lambda x, v, w: convolved(lax.sort(convolved(x, v)), w), _ARGUMENTS),
)


RULE = Rule(
    name="maps_in_convolutions",
    does="A convolution computes the maps that it reads: those whose operands take no more bytes "
    "than the result, and in the backward pass those that only convolutions and reductions read.",
    component="fusion of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("tests/xla/tpu/test_images.py",),
    witness=WITNESS,
    states=fusing(in_convolutions=(is_in_convolutions,)),
)
