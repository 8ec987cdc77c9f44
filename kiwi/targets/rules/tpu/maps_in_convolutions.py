"""XLA:TPU computes a map in each convolution of the backward pass that reads it.

No other operators may read the map, its operands take at most twice the bytes of its result, and it
is not the epilogue of what it alone reads.
"""

from kiwi.hlo.chains import Chains
from kiwi.hlo.graph import Phase
from kiwi.targets.rule import Rule, fusing

_NOT_REPEATED = frozenset({"concatenate", "cosine", "reverse", "sine", "slice", "tan"})
"""Opcodes that are not fused with convolutions that read them."""

_MOST_READ = 2
"""How many times the bytes of its result a map's operands take at most."""


def is_in_convolutions(chains: Chains, index: int) -> bool:
    """Whether the convolutions that read an equation's result compute it."""
    members, opcodes = chains.members(index), chains.graph.opcodes
    if any(opcodes[member] & _NOT_REPEATED for member in members):
        return False
    if chains.graph.phase_of(index) is Phase.FORWARD:
        return False
    is_read = all("convolution" in opcodes[reader] for reader in chains.readers(index))
    if not is_read or not chains.is_as_small(index, _MOST_READ):
        return False
    return not any(chains.ends_call(members, value) for value in chains.tensors(index))


RULE = Rule(
    name="maps_in_convolutions",
    does="A convolution of the backward pass computes the maps that convolutions alone read.",
    component="fusion of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("tests/xla/tpu/test_images.py",),
    states=fusing(in_convolutions=(is_in_convolutions,)),
    limits="Convolutions of the forward pass also compute maps in front of them.",
)
