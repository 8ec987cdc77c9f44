"""Layers of unrolled programs, found by structure."""

import itertools

import jax
import jax.numpy as jnp

from kiwi.hlo.graph import Phase
from kiwi.hlo.repeated_layers import repeated_layers
from tests.helpers.planning import array, units_of

WIDTH, LAYERS = 16, 5
X, SCALE = array(8, WIDTH), array(WIDTH)
W = array(WIDTH, WIDTH)


def step(weights, scale, x):
    """Layers that share a vector, and an update."""

    def loss(weights):
        y = jnp.cos(x)
        for first, second in weights:
            y = y + jnp.tanh((y * scale) @ first) @ second
        return jnp.square(y).sum()

    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))


def flat(*leaves):
    *weights, scale, x = leaves
    pairs = list(zip(weights[::2], weights[1::2], strict=True))
    return jax.tree.leaves(step(pairs, scale, x))


def test_each_weight_goes_to_that_of_the_next_layer():
    units = units_of(flat, *[W] * (2 * LAYERS), SCALE, X)
    arguments = units.graph.program.arguments
    shift = repeated_layers(units).arguments.images
    assert shift == {arguments[k]: arguments[k + 2] for k in range(2 * (LAYERS - 1))}


def test_units_go_to_units_of_their_phase_and_most_are_in_a_layer():
    units = units_of(flat, *[W] * (2 * LAYERS), SCALE, X)
    shift = repeated_layers(units).units.images
    assert all(units.units[a].phase is units.units[b].phase for a, b in shift.items())
    updates = [u.index for u in units.units if u.phase is Phase.UPDATE]
    assert len(set(updates) & set(shift)) == 2 * (LAYERS - 1)
    assert len(shift) > 0.6 * len(units.units)
    # Backward passes run from the last layer to the first: their next layer comes before.
    products = [a for a in shift if units.units[a].phase is Phase.BACKWARD]
    assert sum(shift[a] < a for a in products) > 0.9 * len(products)


def test_two_stacks_of_layers_are_both_found():
    def loss(*leaves):
        *weights, x = leaves
        y = x
        for w in weights[:LAYERS]:
            y = jnp.tanh(y @ w)
        y = y @ jnp.ones((WIDTH, 2 * WIDTH))
        for w in weights[LAYERS:]:
            y = jnp.sin(y @ w) * 2
        return y.sum()

    wide = array(2 * WIDTH, 2 * WIDTH)
    units = units_of(jax.grad(loss, range(2 * LAYERS)), *[W] * LAYERS, *[wide] * LAYERS, X)
    arguments = units.graph.program.arguments
    shift = repeated_layers(units).arguments.images
    both = [k for k in range(2 * LAYERS) if k not in (LAYERS - 1, 2 * LAYERS - 1)]
    assert {arguments[k]: arguments[k + 1] for k in both}.items() <= shift.items()


def test_layers_of_other_shapes_do_not_repeat():
    def loss(x, *weights):
        for w in weights:
            x = jnp.tanh(x @ w)
        return x.sum()

    widths = (16, 32, 64, 16, 8)
    weights = [array(a, b) for a, b in itertools.pairwise(widths)]
    shift = repeated_layers(units_of(jax.grad(loss), X, *weights))
    assert not shift.units.images and not shift.arguments.images
