"""Hyperbolic tangents of 16-bit tensors are stored; those of other tensors are recomputed by their
readers."""

import jax
import jax.numpy as jnp
import pytest

import kiwi
from kiwi.targets.rules.gpu.costly_narrow_maps import WITNESS


def stored(function, *args):
    """Returns the operators whose results are stored, in a step for H100s."""
    planned = kiwi.jit(function, mesh_shape=(1,), profile="h100-sxm")
    units = planned.traced(*args).units
    return {name for unit in units.units for name in units.graph.opcodes[unit.root]}


def of_activation(activation, computed="float32"):
    """Returns gradients of a network in bfloat16 that computes its activation in another type."""

    def gradients(x, up, down):
        def loss(up, down):
            hidden = activation((x @ up).astype(computed)).astype(x.dtype)
            return jnp.sum(jnp.square((hidden @ down).astype(jnp.float32)))

        return jax.grad(loss, (0, 1))(up, down)

    return gradients


def test_the_tanh_of_a_gelu_is_stored_in_bfloat16_alone():
    example, control = WITNESS.example, WITNESS.control
    assert "tanh" in stored(example.function, *example.arguments)
    assert "tanh" not in stored(control.function, *control.arguments)


@pytest.mark.parametrize(
    ("activation", "opcode", "is_stored"),
    [
        (jax.nn.gelu, "tanh", True),
        (jax.nn.mish, "tanh", True),
        (jax.nn.silu, "logistic", False),
    ],
)
def test_what_is_computed_in_float32_of_bfloat16_counts_as_narrow(activation, opcode, is_stored):
    arguments = WITNESS.example.arguments
    assert (opcode in stored(of_activation(activation), *arguments)) == is_stored
