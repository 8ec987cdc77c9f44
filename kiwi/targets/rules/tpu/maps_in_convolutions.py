"""XLA:TPU computes a map in each convolution of the backward pass that reads it.

There are three conditions: only convolutions read the map, its operands take at most twice the
bytes of its result, and it is not the epilogue of a library call whose result it alone reads.
"""

import jax
from jax import lax

from kiwi.hlo.chains import Chains
from kiwi.hlo.graph import Phase
from kiwi.targets.rule import Rule, fusing
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_NOT_REPEATED = frozenset({"concatenate", "cosine", "reverse", "sine", "slice", "tan"})
"""Opcodes that are not fused with convolutions that read them."""

_MOST_READ = 2
"""The most bytes of a map's operands, as a multiple of the bytes of its result. The result of a map
with larger operands is stored."""


def is_in_convolutions(chains: Chains, index: int) -> bool:
    """Returns whether the convolutions that read an equation's result compute it."""
    members, opcodes = chains.members(index), chains.graph.opcodes
    if any(opcodes[member] & _NOT_REPEATED for member in members):
        return False
    if chains.graph.phase_of(index) is Phase.FORWARD:
        return False
    is_read = all("convolution" in opcodes[reader] for reader in chains.readers(index))
    if not is_read or not chains.is_as_small(index, _MOST_READ):
        return False
    return not any(chains.ends_call(members, value) for value in chains.tensors(index))


def _convolved(x: jax.Array, kernel: jax.Array) -> jax.Array:
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)


def _centred(x: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
    """Returns two convolutions. The second one reads the difference between the first one's result
    and its mean."""
    y = _convolved(x, first)
    return _convolved(y - y.mean((0, 1, 2)), second)


def _maps_inside(module: InspectedModule) -> bool:
    return bool(module.with_opcodes("convolution", "subtract"))


_ARGUMENTS = array(4, 32, 32, 64), array(3, 3, 64, 64), array(3, 3, 64, 64)

WITNESS = Witness(
    says="One kernel subtracts the mean and convolves.",
    example=Example(_centred, _ARGUMENTS),
    shows=_maps_inside,
    control=Example(lambda x, v, w: _convolved(_convolved(x, v), w), _ARGUMENTS),
)


RULE = Rule(
    name="maps_in_convolutions",
    does="A convolution of the backward pass computes the maps that convolutions alone read.",
    component="fusion of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("tests/xla/tpu/test_images.py",),
    witness=WITNESS,
    states=fusing(in_convolutions=(is_in_convolutions,)),
    limits="Convolutions of the forward pass also compute maps in front of them.",
)
