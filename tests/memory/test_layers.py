"""Full rematerialisation layer by layer: in scans, and in layers of a Python loop."""

from collections import Counter
from itertools import pairwise

import jax
import jax.numpy as jnp
import pytest

from kiwi.hlo.grouping import build_units
from kiwi.hlo.lowering import lower
from kiwi.memory.residency import (
    MAX_TIMES,
    rematerialised_bodies,
    rematerialised_layers,
    residencies,
)
from tests.helpers.planning import array, trace_flat

LAYERS, ROWS = 5, 64
WIDTHS = (16, 20, 24, 28, 32, 36, 40, 16)
DEPTH = len(WIDTHS) - 1
assert DEPTH > MAX_TIMES, "a layer is a longer chain than a unit is offered times of its consumers"


def layer(x, weights):
    y = x
    for k in range(DEPTH):
        y = jnp.tanh(y @ weights[k])
    return x + y


def scanned(weights, x, layer=layer):
    x, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, weights)
    return jnp.square(x).sum()


def unrolled(weights, x, layer=layer):
    for k in range(LAYERS):
        x = layer(x, weights[DEPTH * k : DEPTH * (k + 1)])
    return jnp.square(x).sum()


STACKED = [array(LAYERS, *shape) for shape in pairwise(WIDTHS)]
LISTED = [array(*shape) for shape in pairwise(WIDTHS)] * LAYERS
X = array(ROWS, WIDTHS[0])


def units_of(loss, weights):
    """Returns the units of the loss's gradient, with loops opened."""
    leaves, tree = jax.tree.flatten(weights)
    gradient = lambda *flat: jax.grad(loss)(jax.tree.unflatten(tree, flat[:-1]), flat[-1])  # noqa: E731
    return build_units(lower(trace_flat(gradient, *leaves, X, open_loops=True)))


def times(units, residencies_of_units):
    """Returns, for each time, the number of units that run again."""
    options = [own.options[0] for own in residencies_of_units]
    return Counter(option.recompute_at for option in options if option.recomputes)


def test_the_body_of_a_scan_runs_again_as_a_whole_and_that_is_offered():
    units = units_of(scanned, STACKED)
    found = rematerialised_bodies(units)
    ((time, count),) = times(units, found).items()
    assert units.units[time].loop == 1 and count >= DEPTH
    for own, offered in zip(found, residencies(units), strict=True):
        assert set(own.options) <= set(offered.options)
    assert rematerialised_layers(units) == found


def test_each_layer_of_a_python_loop_runs_again_as_a_whole():
    units = units_of(unrolled, LISTED)
    found = rematerialised_layers(units)
    again = times(units, found)
    assert list(again.values()) == [DEPTH] * LAYERS
    sums = [unit.index for unit in units.units if len(unit.equations) == 1][: LAYERS - 1]
    assert all(not found[index].options[0].recomputes for index in sums)


@pytest.mark.parametrize("function, weights", [(scanned, STACKED), (unrolled, LISTED)])
def test_what_runs_again_finds_its_operands(function, weights):
    units = units_of(function, weights)
    found = rematerialised_layers(units)
    for unit, own in zip(units.units, found, strict=True):
        for value in unit.reads if own.options[0].recomputes else ():
            if value in units.producer:
                producer = found[units.producer[value]].options[0]
                assert producer.available_at(own.options[0].recompute_at)
