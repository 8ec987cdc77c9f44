"""Chains from partial sums to shardings, and the greedy search beside the exact one."""

from itertools import combinations

import numpy as np
import pytest

from benchmarks.resharding.greedy import greedy_path
from benchmarks.resharding.reduction import reduction_path
from kiwi.errors import ShardingConflictError
from kiwi.hlo.program import Value
from kiwi.kernels.partitioner import reduction_collectives
from kiwi.mesh import (
    DeviceMesh,
    ReshardingTable,
    TensorSharding,
    collective,
    enumerate_shardings,
)
from kiwi.mesh.moves import slice_price, transposed_seconds
from kiwi.targets.registry import target_of
from tests.helpers.collectives import all_reduce, reduce_scatter

X, Y, Z = range(3)
SHAPE = (1600, 3200)


def sharding(*dims):
    return TensorSharding(tuple(dims))


def table(mesh_shape=(2, 4), profile="h100-sxm", shape=SHAPE):
    return ReshardingTable(DeviceMesh.create(mesh_shape, profile), shape, 4)


def total(steps):
    return sum(step.seconds for step in steps)


def test_one_reduce_scatter_where_it_does():
    t = table()
    (step,) = reduction_path(t, sharding((), ()), (Y,), sharding((), (Y,)))
    assert (step.kind, step.axes, step.dims) == ("reduce-scatter", (Y,), (1,))
    assert step.seconds == reduce_scatter(t.mesh, (Y,), t.tensor_bytes).seconds


def test_one_all_reduce_where_nothing_is_scattered():
    t = table()
    (step,) = reduction_path(t, sharding((X,), ()), (Y,), sharding((X,), ()))
    assert (step.kind, step.axes, step.bytes) == ("all-reduce", (Y,), t.tensor_bytes // 2)


def test_sums_are_scattered_onto_one_dimension_then_moved():
    """A reduce-scatter cuts one dimension: over two, moving a part is cheaper than all of it."""
    t = table()
    steps = reduction_path(t, sharding((), ()), (X, Y), sharding((X,), (Y,)))
    assert "all-reduce" not in [step.kind for step in steps]
    assert steps[-1].result == sharding((X,), (Y,))
    assert total(steps) < all_reduce(t.mesh, (X, Y), t.tensor_bytes).seconds


def test_slow_links_carry_what_is_left_after_fast_ones():
    t = table(profile="v100-sxm2")
    steps = reduction_path(t, sharding((), ()), (X, Y), sharding((X,), (Y,)))
    assert [(s.kind, s.axes) for s in steps[:2]] == [
        ("reduce-scatter", (Y,)),
        ("reduce-scatter", (X,)),
    ]


def test_without_partial_sums_it_is_the_path():
    t = table()
    for source in enumerate_shardings(SHAPE, t.mesh):
        target = sharding((Y,), ())
        assert reduction_path(t, source, (), target) == t.path(source, target)


@pytest.mark.parametrize("mesh_shape", [(8,), (2, 4), (2, 2, 2)])
def test_no_reduction_then_resharding_is_cheaper(mesh_shape):
    """Every way of one all-reduce or one reduce-scatter and then the shortest path."""
    t = table(mesh_shape, "v100-sxm2")
    axes = tuple(range(len(mesh_shape)))
    replicated = TensorSharding.replicated(2)
    for target in enumerate_shardings(SHAPE, t.mesh):
        for count in range(1, len(axes) + 1):
            for partial in combinations(axes, count):
                found = reduction_path(t, replicated, partial, target)
                assert (found[-1].result if found else replicated) == target
                full = all_reduce(t.mesh, partial, t.tensor_bytes).seconds
                assert total(found) <= full + t.seconds(replicated, target) + 1e-12
                for dim in range(2):
                    cut = TensorSharding(tuple(partial if d == dim else () for d in range(2)))
                    seconds = reduce_scatter(t.mesh, partial, t.tensor_bytes).seconds
                    assert total(found) <= seconds + t.seconds(cut, target) + 1e-12


def test_a_partial_axis_that_cuts_is_refused():
    with pytest.raises(ShardingConflictError, match="Partial sums along axes"):
        reduction_path(table(), sharding((X,), ()), (X,), sharding((), ()))


# --- What XLA compiles ---------------------------------------------------------------------------


def uses(profile, mesh_shape, source, partial, scattered):
    mesh = DeviceMesh.create(mesh_shape, profile)
    part = Value(0, (), "float32", 4, is_extended=False, producer=None)
    has_it = target_of(mesh.hardware).facts(mesh.hardware).scatters_sums(mesh, {}, part)
    found = reduction_collectives(mesh, source, partial, scattered, 8000, has_it)
    for c in found:
        dim = scattered[c.axes[0]] if c.kind == "reduce-scatter" else 0
        seconds = collective(c.kind, mesh, c.axes, c.bytes).seconds
        assert c.seconds == seconds + transposed_seconds(mesh, c.axes, dim, c.bytes)
    return [(c.kind, c.axes, c.bytes) for c in found]


@pytest.mark.parametrize("profile", ["h100-sxm", "v5e"])
def test_gpus_transpose_what_they_gather_or_scatter_along_another_dimension(profile):
    """The shard of each device, which is read and written."""
    mesh = DeviceMesh.create((8,), profile)
    size = 1024 * 512 * 4
    table = ReshardingTable(mesh, (1024, 512), 4)
    cut = sharding((X,), ()), sharding((), (X,))
    found = [table.seconds(layout, sharding((), ())) for layout in cut]
    more = slice_price(mesh, size // 8).seconds if mesh.hardware.backend == "gpu" else 0.0
    assert found[1] - found[0] == pytest.approx(more, rel=1e-6, abs=1e-12)
    sums = [
        reduction_collectives(mesh, sharding((), ()), (X,), {X: dim}, size, True)[0].seconds
        for dim in range(2)
    ]
    assert sums[1] - sums[0] == pytest.approx(more, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(("size_bytes", "share"), [(2**20, 0.25), (2**23, 0.375), (2**25, 1.0)])
def test_gathers_that_are_combined_have_a_share_of_the_latency_each(size_bytes, share):
    """And bytes of their own; a large one is alone."""
    mesh = DeviceMesh.create((8,), "h100-sxm")
    latency = collective("all-gather", mesh, (X,), 0).seconds
    alone, combined = (ReshardingTable(mesh, (size_bytes,), 1, c) for c in (1.0, 0.25))
    found, single = (each.seconds(sharding((X,)), sharding(())) for each in (combined, alone))
    assert single - found == pytest.approx((1 - share) * latency, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("kind", ["all-reduce", "reduce-scatter", "all-gather"])
def test_tpus_combine_sums_up_to_a_mebibyte_and_no_gathers(kind):
    mesh = DeviceMesh.create((8,), "v5e")
    latency = collective(kind, mesh, (X,), 0).seconds
    for size_bytes, share in ((2**18, 0.25), (2**19, 0.5), (2**20, 1.0), (2**21, 1.0)):
        alone = collective(kind, mesh, (X,), size_bytes).seconds
        combined = collective(kind, mesh, (X,), size_bytes, least_share=0.125).seconds
        saved = 0.0 if kind == "all-gather" else (1 - share) * latency
        assert alone - combined == pytest.approx(saved, rel=1e-6, abs=1e-12)


def test_gpus_reduce_scatter_onto_one_dimension_only():
    none = sharding((), ())
    one = uses("h100-sxm", (2, 4), none, (X, Y), {X: 0, Y: 0})
    assert one == [("reduce-scatter", (X, Y), 8000)]
    assert uses("h100-sxm", (2, 4), none, (X, Y), {X: 0, Y: 1}) == [("all-reduce", (X, Y), 8000)]
    some = uses("h100-sxm", (2, 4), none, (X, Y), {Y: 1})
    assert some == [("reduce-scatter", (Y,), 8000), ("all-reduce", (X,), 2000)]


def test_cpus_have_no_reduce_scatter():
    none = sharding((), ())
    assert uses("cpu", (2, 4), none, (Y,), {Y: 0}) == [("all-reduce", (Y,), 8000)]
    several = uses("cpu", (2, 4), none, (X, Y), {X: 0, Y: 1})
    assert several == [("all-reduce", (X,), 8000), ("all-reduce", (Y,), 8000)]


def test_sums_onto_a_dimension_that_is_cut_are_all_reduced_together():
    for profile in ("cpu", "h100-sxm"):
        found = uses(profile, (2, 2, 2), sharding((X,), ()), (Y, Z), {Z: 0})
        assert found == [("all-reduce", (Y, Z), 8000)]


# --- MAP's greedy search -----------------------------------------------------------------------


def greedy_ratios(mesh_shape, profile):
    t = table(mesh_shape, profile)
    ratios = []
    layouts = enumerate_shardings(SHAPE, t.mesh)
    for source in layouts:
        for target in layouts:
            if source != target:
                steps = greedy_path(t, source, target)
                assert steps[-1].result == target
                ratios.append(total(steps) / t.seconds(source, target))
    return np.array(ratios)


@pytest.mark.parametrize(
    ("mesh_shape", "profile", "mean", "worst"),
    # Where an all-gather over slow links could be cut before, the heuristic does not see it.
    [
        ((8,), "h100-sxm", 1.0, 1.0),
        ((2, 4), "h100-sxm", 1.65, 4.8),
        ((2, 4), "v100-sxm2", 2.48, 5.0),
    ],
)
def test_how_much_worse_the_greedy_search_is(mesh_shape, profile, mean, worst):
    ratios = greedy_ratios(mesh_shape, profile)
    assert ratios.min() > 1 - 1e-9
    assert ratios.mean() == pytest.approx(mean, rel=0.1)
    assert ratios.max() == pytest.approx(worst, rel=0.1)


def test_the_greedy_search_ends_on_three_axes_and_in_any_order():
    t = table((2, 2, 2))
    for source in (sharding((Z, X, Y), ()), sharding((Y,), (Z, X)), sharding((), ())):
        for target in (sharding((X, Y, Z), ()), sharding((Z,), (Y,)), sharding((), (Y, X))):
            steps = greedy_path(t, source, target)
            assert steps[-1].result == target
            assert total(steps) >= t.seconds(source, target) - 1e-12


def test_shardings_that_do_not_fit_are_refused():
    with pytest.raises(ShardingConflictError, match="cannot be cut"):
        greedy_path(table(shape=(7, 8)), sharding((), ()), sharding((X,), ()))
