"""The memory that XLA holds from the start of the step because nothing makes it wait."""

import jax
import jax.numpy as jnp

from kiwi.solver.problem import Interval
from tests.helpers.planning import array, kernels_of, units_of

PROFILES = ("cpu", "h100-sxm", "v5e")


def held_early(units, unit, profile, result_bytes):
    """Returns the intervals that a target holds from the start of the step for a unit."""
    kernel = kernels_of(units, profile)[unit.index]
    return tuple(held.interval(result_bytes) for held in kernel.held_early)


def unit_of(units, name):
    program = units.graph.program
    return next(u for u in units.units if program.equations[u.root].name == name)


def test_a_scan_holds_its_stacked_results_and_not_its_carry():
    def step(w, x):
        y = jnp.sin(x @ w)
        final, stacked = jax.lax.scan(lambda c, v: (c + v, c * v), y[0], y)
        return final.sum() + stacked.sum()

    units = units_of(step, array(8, 8), array(16, 8))
    unit = unit_of(units, "scan")
    carry, stacked = 8 * 4, 16 * 8 * 4
    for profile in PROFILES:
        found = held_early(units, unit, profile, carry + stacked)
        assert found == (Interval(0, unit.index, stacked),)


def _embedding_gradient(table, ids):
    return jax.grad(lambda t: jnp.sin(t[ids]).sum())(table)


def test_zeros_that_a_gradient_is_scattered_onto_are_held_by_a_cpu():
    arguments = array(64, 32), array(16, dtype="int32")
    units = units_of(lambda t, ids: t - _embedding_gradient(t, ids), *arguments)
    unit = unit_of(units, "scatter-add")
    size = 64 * 32 * 4
    assert held_early(units, unit, "cpu", size) == (Interval(0, unit.index, size),)
    assert held_early(units, unit, "h100-sxm", size) == ()
    units = units_of(_embedding_gradient, *arguments)
    assert held_early(units, unit_of(units, "scatter-add"), "cpu", size) == ()


def test_everything_else_holds_nothing():
    units = units_of(lambda x: jnp.sin(x @ x), array(8, 8))
    assert all(held_early(units, u, "cpu", 256) == () for u in units.units)
