"""Strategies whose partial sums XLA does not scatter, and their replacements."""

import jax.numpy as jnp
import pytest

from kiwi.mesh import DeviceMesh, hardware
from kiwi.problem.strategies import enumerate_strategies
from kiwi.problem.strategy_table import StrategyTable, _without_cut_sums
from kiwi.targets.registry import target_of
from tests.helpers.planning import array, kernels_of, units_of


@pytest.mark.parametrize("mesh_shape", [(2, 4), (2, 2, 2)])
def test_scattering_strategies_stand_in_for_those_that_cut(mesh_shape):
    units = units_of(lambda x, w: [x @ w], array(512, 1024), array(1024, 256))
    (unit,) = units.units
    mesh = DeviceMesh.create(mesh_shape, "h100-sxm")
    found = enumerate_strategies(kernels_of(units), unit, mesh)
    cutting = [s for s in found if s.cuts_sums]
    assert cutting
    for s in cutting:
        assert [c.kind for c in s.collectives] == ["all-reduce"] * len(s.collectives)
        assert s.workspace_bytes > 0
    left = StrategyTable(kernels_of(units), mesh).undominated(unit, found)
    assert not any(s.cuts_sums for s in left)
    # The same operands, and as little memory for the result, by a reduce-scatter.
    for s in cutting:
        others = [t for t in found if t.reads == s.reads and not t.cuts_sums]
        assert min(t.result_bytes for t in others) <= s.result_bytes


def test_they_stay_where_nothing_scatters_as_far():
    # Neither dimension can be cut by eight: only both together hold the result in eighths.
    units = units_of(lambda x, w: [x @ w], array(4, 1024), array(1024, 2))
    (unit,) = units.units
    mesh = DeviceMesh.create((2, 4), "h100-sxm")
    left = _without_cut_sums(enumerate_strategies(kernels_of(units), unit, mesh))
    summed = [s for s in left if s.reads[0].dims == ((), (0, 1))]
    assert [s.result_bytes for s in summed if s.cuts_sums] == [4]
    assert all(s.result_bytes > 4 for s in summed if not s.cuts_sums)


def test_collectives_on_cpus_move_wider_elements():
    (value, *_) = units_of(lambda x: [jnp.sin(x)], array(8, 8)).graph.program.values
    narrow, half = (value.of_dtype(dtype) for dtype in ("bfloat16", "float16"))
    cpu, gpu = (target_of(hardware(name)).facts(hardware(name)) for name in ("cpu", "h100-sxm"))
    assert [cpu.moved_itemsize(moved) for moved in (value, narrow, half)] == [4, 4, 2]
    assert gpu.moved_itemsize(narrow) == 2
