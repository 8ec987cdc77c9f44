"""When buffers are alive, case by case of `kiwi.memory.live_ranges`."""

import jax
import jax.numpy as jnp
import pytest

from kiwi.memory.live_ranges import LiveRanges, fused_pairs, overwritten_pairs, runs_of
from kiwi.memory.residency import residencies
from tests.helpers.planning import kernels_of, units_of
from tests.helpers.three_layers import W, X, forward_tanhs, loss


@pytest.fixture(scope="module")
def units():
    return units_of(jax.value_and_grad(loss), W, X)


def held(buffers, size):
    """Returns the times at which buffers of a size are alive."""
    return {t for b in buffers if b.bytes == size for t in range(b.start, b.end)}


def usage(units, unit, option, workspace=()):
    """Returns the buffers of one option of a unit whose result has 7 bytes."""
    own = residencies(units)[unit.index]
    overwritten = overwritten_pairs(units, kernels_of(units, "cpu").overwritable)
    runs = runs_of(units, unit, own, option, overwritten, fused_pairs(units))
    return LiveRanges.of(units).of_unit(unit, runs, 7, workspace, workspace)


def test_case_1_arguments_are_held_throughout(units):
    ranges, argument = LiveRanges.of(units), units.graph.program.arguments[0]
    assert held(ranges.of_argument(argument, 7), 7) == set(range(ranges.horizon))


def test_case_2_a_donated_argument_is_held_until_it_is_overwritten():
    units = units_of(lambda w, x: w - jax.grad(loss)(w, x), W, X, donated=(0,))
    ranges, argument = LiveRanges.of(units), units.graph.program.arguments[0]
    (result,) = units.graph.program.results
    writer = units.producer[result]
    assert held(ranges.of_argument(argument, 7), 7) == set(range(writer))
    (option,) = residencies(units)[writer].options
    found = usage(units, units.units[writer], option)
    assert held(found, 7) == set(range(writer, ranges.horizon))


def test_case_3_a_result_is_held_throughout(units):
    writer = units.units[units.producer[units.graph.program.results[1]]]
    (option,) = residencies(units)[writer.index].options
    assert held(usage(units, writer, option), 7) == set(range(len(units.units)))


def test_cases_4_and_5_a_recomputed_value_has_two_lives_with_workspace_each(units):
    first, *_ = forward_tanhs(units)
    residency = residencies(units)[first.index]
    option = next(r for r in residency.options if r.recomputes)
    found = usage(units, first, option, (3,))
    times = held(found, 7)
    assert set(range(first.index, residency.last_forward_use + 1)) <= times
    gap = range(residency.last_forward_use + 1, option.recompute_at)
    assert len(gap) and not times & set(gap)
    assert option.recompute_at in times and max(times) <= option.end
    assert held(found, 3) == {first.index, option.recompute_at}


def gated(w, x):
    h = x @ w
    return (((h * (1 + jnp.tanh(h))) @ x.T) ** 2).sum()


def test_case_5_a_map_that_is_recomputed_for_a_map_alone_is_held_nowhere():
    units = units_of(jax.grad(gated), W, X)
    gate = next(u for u in units.units if "tanh" in units.graph.opcodes[u.root])
    residency = residencies(units)[gate.index]
    option = next(r for r in residency.options if r.recomputes)
    assert option.recompute_at == option.end
    assert option.recompute_at not in held(usage(units, gate, option), 7)


def test_keeping_a_value_holds_it_in_between(units):
    first, *_ = forward_tanhs(units)
    residency = residencies(units)[first.index]
    times = held(usage(units, first, residency.options[0]), 7)
    assert times == set(range(min(times), max(times) + 1)) and max(times) >= residency.last_use - 1
