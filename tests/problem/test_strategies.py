"""Sharding strategies of small units, enumerated and priced by hand."""

from dataclasses import replace

import jax
import pytest

from kiwi.hlo.units import UnitGraph
from kiwi.mesh import DeviceMesh, TensorSharding
from kiwi.mesh.moves import transposed_seconds
from kiwi.problem.strategies import enumerate_strategies, tensor_sharding
from kiwi.targets.cpu import CPU
from kiwi.targets.gpu import GPU
from tests.helpers.collectives import all_reduce, reduce_scatter
from tests.helpers.planning import array, units_of

MESH = DeviceMesh.create((2, 4), "h100-sxm")
X, Y = 0, 1


def matmul(i=8, k=16, j=32) -> UnitGraph:
    return units_of(lambda x, w: x @ w, array(i, k), array(k, j))


def strategies_of(units, mesh=MESH, target=GPU):
    (unit,) = units.units
    return enumerate_strategies(target.kernels(units, mesh.hardware), unit, mesh)


def layout(*dims):
    return TensorSharding(tuple(tuple(d) for d in dims))


def find(strategies, reads, result):
    (found,) = [s for s in strategies if s.reads == tuple(reads) and s.results == (result,)]
    return found


def test_a_matmul_has_every_assignment_of_axes_to_its_three_factors():
    found = strategies_of(matmul())
    # Each axis goes to i, j, k or nowhere: 16 assignments. An axis on k leaves partial sums that
    # are all-reduced or scattered onto i or j: 3 results. So each axis has 3 + 3 = 6 ways.
    assert len(found) == 36
    assert len({(s.reads, s.results) for s in found}) == 36


def test_without_communication_a_matmul_costs_its_share_of_the_work():
    rate = MESH.hardware.matmul_flops_per_second("float32")
    bandwidth = MESH.hardware.sustained_memory_bytes_per_second
    strategy = find(
        strategies_of(matmul(1024, 2048, 4096)),
        [layout([X], []), layout([], [Y])],
        layout([X], [Y]),
    )
    work = 2 * 1024 * 2048 * 4096 / 8 / rate
    moved = 4 * (512 * 2048 + 2048 * 1024 + 512 * 1024) / bandwidth
    expected = MESH.hardware.kernel_launch_seconds + max(work, moved)
    assert strategy.compute_seconds == pytest.approx(expected)
    assert strategy.collectives == () and strategy.workspace_bytes == 0
    assert strategy.result_bytes == 4 * 512 * 1024


def test_partial_sums_are_all_reduced():
    # XLA:CPU sums to a place of its own; the operands are arguments, and stay.
    for target, buffers in ((GPU, ()), (CPU, (8 * 32 * 4,))):
        found = strategies_of(matmul(), target=target)
        strategy = find(found, [layout([], [Y]), layout([Y], [])], layout([], []))
        assert strategy.collectives == (all_reduce(MESH, [Y], 8 * 32 * 4),)
        assert strategy.communication_seconds == all_reduce(MESH, [Y], 8 * 32 * 4).seconds > 0
        assert strategy.workspace_bytes == 0 and strategy.buffers_while_running == buffers


def test_partial_sums_are_scattered_where_shards_are_wanted():
    size = 8 * 32 * 4
    for target, reduced, sums in ((GPU, reduce_scatter, 0), (CPU, all_reduce, size)):
        found = strategies_of(matmul(), target=target)
        strategy = find(found, [layout([], [Y]), layout([Y], [])], layout([Y], []))
        assert strategy.collectives == (reduced(MESH, [Y], size),)
        assert strategy.result_bytes == size // 4
        assert strategy.workspace_bytes == size - strategy.result_bytes
        assert sum(strategy.buffers_while_running) == size - strategy.result_bytes + sums


def test_partial_sums_along_two_axes_are_scattered_first_and_reduced_then():
    reads = [layout([], [X, Y]), layout([X, Y], [])]
    strategy = find(strategies_of(matmul()), reads, layout([], [Y]))
    size = 8 * 32 * 4
    scattered, reduced = strategy.collectives
    more = transposed_seconds(MESH, [Y], 1, size)
    expected = reduce_scatter(MESH, [Y], size)
    assert scattered == replace(expected, seconds=expected.seconds + more)
    assert reduced == all_reduce(MESH, [X], size // 4)


@pytest.mark.parametrize(
    ("i", "shards"), [(8, {1, 2, 4, 8}), (4, {1, 2, 4}), (6, {1, 2}), (7, {1})]
)
def test_dimensions_are_cut_evenly_only(i: int, shards: set[int]):
    found = strategies_of(matmul(i=i))
    assert {s.results[0].dim_shards(MESH.shape)[0] for s in found} == shards


def test_axes_of_size_one_are_not_used():
    assert len(strategies_of(matmul(), DeviceMesh.create((1, 4), "h100-sxm"))) == 6
    (only,) = strategies_of(matmul(), DeviceMesh.create((1, 1), "h100-sxm"))
    assert only.reads == (layout([], []), layout([], []))


def test_every_layout_divides_its_tensor():
    units = units_of(lambda x: x.reshape(8, 4, 6).sum(2), array(32, 6))
    for strategy in strategies_of(units):
        assert strategy.reads[0].divides((32, 6), MESH.shape)
        assert strategy.results[0].divides((8, 4), MESH.shape)


def test_of_two_strategies_with_equal_layouts_the_cheaper_is_left():
    found = strategies_of(matmul())
    keys = [(s.reads, s.results) for s in found]
    assert len(keys) == len(set(keys))


# A tensor of 8 = 2 x 4 elements in one dimension: factor 0 major, factor 1 minor.
SIZES = (2, 4)


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ({}, layout([])),
        ({0: (X,)}, layout([X])),
        ({0: (X,), 1: (Y,)}, layout([X, Y])),
        ({1: (Y,)}, None),
        ({1: (X,)}, None),
    ],
)
def test_a_minor_factor_is_cut_only_behind_single_elements_of_the_major(assignment, expected):
    assert tensor_sharding(((0, 1),), SIZES, assignment, MESH) == expected


def test_a_major_factor_that_is_not_cut_to_single_elements_forbids_cutting_the_minor():
    assert tensor_sharding(((0, 1),), (4, 4), {0: (X,), 1: (Y,)}, MESH) is None
    assert tensor_sharding(((0, 1),), (4, 4), {0: (Y,), 1: (X,)}, MESH) == layout([Y, X])
    assert tensor_sharding(((0,), (1,)), (4, 4), {0: (X,), 1: (Y,)}, MESH) == layout([X], [Y])


def convolution(dtype="float32", order=("NHWC", "HWIO", "NHWC")) -> UnitGraph:
    def convolved(x, w):
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=order)

    image = (16, 8, 8, 64) if order[0] == "NHWC" else (16, 64, 8, 8)
    return units_of(convolved, array(*image, dtype=dtype), array(3, 3, 64, 32, dtype=dtype))


@pytest.mark.parametrize(
    ("dtype", "order", "scattered", "is_transposed"),
    [
        ("float32", ("NHWC", "HWIO", "NHWC"), 0, False),
        ("float32", ("NHWC", "HWIO", "NHWC"), 3, True),
        ("float32", ("NHWC", "HWIO", "CHWN"), 3, False),
        ("bfloat16", ("NHWC", "HWIO", "NHWC"), 3, True),
    ],
)
def test_a_gpu_transposes_a_convolution_s_summands_to_scatter_them(
    dtype, order, scattered: int, is_transposed: bool
):
    one = DeviceMesh.create((4,), "h100-sxm")
    units = convolution(dtype, order)
    (result,) = units.graph.program.results
    size = units.graph.program.values[result].size_bytes
    wanted = layout(*([0] if d == scattered else [] for d in range(4)))
    found = [s for s in strategies_of(units, one) if s.results == (wanted,) and s.collectives]
    assert found
    for strategy in found:
        # Operands are arguments: the transposed summands cannot take their place.
        expected = (size,) if is_transposed else ()
        assert strategy.workspace_bytes == size - size // 4
        assert strategy.buffers_while_running[1:] == expected
