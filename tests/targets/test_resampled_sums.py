"""The levels of associative scans: which of them kernels store."""

import jax
import jax.numpy as jnp

from kiwi.hlo.distinct_elements import distinct_bytes
from kiwi.hlo.grouping import build_units
from kiwi.hlo.lowering import lower
from kiwi.kernels.emitted_instructions import EmittedInstructions
from kiwi.targets.registry import TARGETS
from tests.helpers.planning import CATALOGUE, array, trace_flat

BATCH, LENGTH, WIDTH, STATES = 4, 256, 16, 32


def combine(left, right):
    return right[0] * left[0], right[0] * left[1] + right[1]


def scan(decay, x, into, out):
    inputs = jnp.einsum("btd,dn->btdn", x, into)
    decays = jnp.broadcast_to(decay, inputs.shape)
    states = jax.lax.associative_scan(combine, (decays, inputs), axis=1)[1]
    return jnp.einsum("btdn,dn->btd", states, out)


MATRIX = array(WIDTH, STATES)
ARGUMENTS = MATRIX, array(BATCH, LENGTH, WIDTH), MATRIX, MATRIX


def stored_lengths(profile, function, *arguments):
    """Returns the lengths of the levels that kernels store, in their order."""
    target = next(t for t in TARGETS.values() if t.observed_on == profile)
    units = build_units(
        lower(trace_flat(function, *arguments)), fusion=target.facts(CATALOGUE[profile]).fusion
    )
    shapes = (units.graph.program.values[u.outputs[0]].shape for u in units.units)
    return [shape[1] for shape in shapes if len(shape) == 4]


def test_gpus_store_every_second_level():
    # Down from 256 inputs that no kernel stores: 128 and 64 would emit the product 4 and 8 times,
    # 32 is stored. On the way up each level of four times the length is stored, with the elements
    # that the level between adds.
    assert stored_lengths("h100-sxm", scan, *ARGUMENTS)[:3] == [32, 8, 2]
    assert 64 in stored_lengths("h100-sxm", scan, *ARGUMENTS)
    assert 256 not in stored_lengths("h100-sxm", scan, *ARGUMENTS)


def test_tpus_store_what_is_sliced_and_what_is_padded_between():
    lengths = stored_lengths("v5e", scan, *ARGUMENTS)
    assert lengths[:4] == [256, 128, 64, 32]  # The inputs, and each level on the way down.
    assert lengths.count(256) == 3  # The states are the sum of two padded halves: no kernel's.


def test_an_instruction_is_emitted_once_for_each_index():
    def levels(x):
        once = x[::2] + x[1::2]
        return once[::2] + once[1::2]

    graph = lower(trace_flat(lambda x: levels(jnp.sin(x)), array(64)))
    names = [equation.name for equation in graph.program.equations]
    emitted = EmittedInstructions(graph, ())
    root = len(names) - 1
    evaluations = emitted.evaluations(root)
    assert evaluations[names.index("sin")] == 4
    assert evaluations[names.index("add")] == 2
    assert emitted.kernels_reading(names.index("sin")) == set()


def test_a_broadcast_repeats_elements_through_maps_and_slices():
    def repeated(x):
        tall = jnp.broadcast_to(jnp.exp(x), (64, 8))
        return (tall[::2] * tall[1::2]).T

    graph = lower(trace_flat(repeated, array(8)))
    assert set(distinct_bytes(graph)) == {8 * 4}
