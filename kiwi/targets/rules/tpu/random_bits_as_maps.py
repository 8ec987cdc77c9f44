"""XLA:TPU computes the random bits of a threefry key by arithmetic, and fuses them like any map."""

import jax
import jax.numpy as jnp

from kiwi.hlo.chains import Chains
from kiwi.targets.rule import Rule, fusing
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule


def is_random_map(chains: Chains, index: int) -> bool:
    """Returns whether an equation computes random bits without the generator of the device."""
    is_random = chains.graph.program.equations[index].name == "random_bits"
    return is_random and "rng_bit_generator" not in chains.graph.opcodes[index]


_WIDTH = 512


def _dropped(x: jax.Array, w: jax.Array, key: jax.Array, generator: str) -> jax.Array:
    """Returns a layer with dropout, whose mask is read in front of the matmul and behind it.

    - `generator`: the name of the random generator.
    """
    bits = jax.random.wrap_key_data(key, impl=generator)
    mask = jax.random.bernoulli(bits, 0.9, x.shape)
    return jnp.where(mask, jnp.tanh(jnp.where(mask, x, 0.0) @ w), 0.0)


def _holds_no_mask(module: InspectedModule) -> bool:
    masks = ("pred", "u32")
    is_held = any(kernel.writes(_WIDTH**2, dtype) for kernel in module.kernels for dtype in masks)
    return bool(module.with_opcodes("xor")) and not is_held


_MATRICES = (array(_WIDTH, _WIDTH),) * 2

WITNESS = Witness(
    says="No kernel writes random bits, or the mask that is made of them.",
    example=Example(
        lambda x, w, key: _dropped(x, w, key, "threefry2x32"),
        (*_MATRICES, array(2, dtype="uint32")),
    ),
    shows=_holds_no_mask,
    control=Example(
        lambda x, w, key: _dropped(x, w, key, "unsafe_rbg"), (*_MATRICES, array(4, dtype="uint32"))
    ),
)


RULE = Rule(
    name="random_bits_as_maps",
    does="Random bits of threefry keys are computed by all that read them.",
    component="fusion of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("tests/hlo/test_fusion.py",),
    witness=WITNESS,
    states=fusing(maps=(is_random_map,)),
)
