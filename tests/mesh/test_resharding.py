"""Resharding: worked examples, laws of shortest paths, and a simulation of the elements that
devices hold."""

import heapq
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiwi.errors import InvalidArgumentError, ShardingConflictError
from kiwi.mesh import (
    DeviceMesh,
    Link,
    ReshardingTable,
    TensorSharding,
    enumerate_shardings,
    hardware,
)
from kiwi.mesh.moves import divisible_pattern, move_graph
from tests.helpers.collectives import all_gather, all_to_all, collective_permute

# Round figures: 1 s a launch, 1000 B/s of memory; x is slow, y is fast.
MACHINE = replace(
    hardware("cpu"),
    memory_bandwidth_bytes_per_second=1000.0,
    bandwidth_efficiency=1.0,
    kernel_launch_seconds=1.0,
)
MESH = DeviceMesh((2, 4), ("x", "y"), (Link(10.0, 5.0), Link(100.0, 2.0)), MACHINE)
X, Y = 0, 1


def sharding(*dims):
    return TensorSharding(tuple(dims))


def table(shape=(80, 80), mesh=MESH, itemsize=4):
    return ReshardingTable(mesh, shape, itemsize)


def kinds(steps):
    return [step.kind for step in steps]


@pytest.mark.parametrize(
    ("shape", "copies"),
    # Pieces of (16, 8, 64) elements, if the first dimension is the minor one, fill tiles of 128 by
    # half; those of (128, 8, 64) fill them.
    [((128, 8, 256), 5 * 2), ((1024, 8, 256), 1)],
)
def test_tpus_copy_what_an_all_to_all_splits(shape, copies):
    source, target = sharding((X, Y), (), ()), sharding((X,), (), (Y,))
    tpu = replace(MESH, hardware=replace(MACHINE, backend="tpu"))
    sizes = [table(shape, mesh) for mesh in (MESH, tpu)]
    here, there = (each.seconds(source, target) for each in sizes)
    local_bytes = sizes[0].tensor_bytes // 8
    assert there - here == pytest.approx(copies * (1 + 2 * local_bytes / 1000))
    (step,) = sizes[1].path(source, target)
    assert (step.kind, step.seconds) == ("all-to-all", pytest.approx(there))


@pytest.mark.parametrize(
    ("source", "target", "kind", "seconds"),
    # 80 * 80 * 4 = 25,600 B in all.
    [
        (((Y,), ()), ((), ()), "all-gather", 3 * 2 + 3 / 4 * 25600 / 100),
        (((X,), (Y,)), ((X,), ()), "all-gather", 3 * 2 + 3 / 4 * 12800 / 100),
        (((), ()), ((), (X,)), "slice", 1 + 2 * 12800 / 1000),
        (((), ()), ((Y,), (X,)), "slice", 1 + 2 * 3200 / 1000),
        (((Y,), ()), ((), (Y,)), "all-to-all", 3 * 2 + 3 / 4 * 6400 / 100),
        (((X, Y), ()), ((X,), (Y,)), "all-to-all", 3 * 2 + 3 / 4 * 3200 / 100),
    ],
)
def test_single_moves(source, target, kind, seconds):
    source, target = sharding(*source), sharding(*target)
    (step,) = table().path(source, target)
    assert step.kind == kind
    assert step.result == target
    assert step.seconds == pytest.approx(seconds)
    assert table().seconds(source, target) == step.seconds


def test_equal_axes_swap_by_a_permute():
    mesh = DeviceMesh((2, 2), ("x", "y"), (Link(50.0, 2.0),) * 2, MACHINE)
    (step,) = table(mesh=mesh).path(sharding((X,), ()), sharding((Y,), ()))
    assert (step.kind, step.axes, step.dims, step.bytes) == (
        "collective-permute",
        (X, Y),
        (0,),
        12800,
    )
    assert step.seconds == pytest.approx(2 + 12800 / 50)


def test_a_finer_target_is_cut_before_it_is_permuted():
    # The latency is high enough that one step beats two with less memory traffic.
    mesh = DeviceMesh((2, 4), ("x", "y"), (Link(100.0, 10.0),) * 2, MACHINE)
    (step,) = table(mesh=mesh).path(sharding((X,), ()), sharding((Y,), ()))
    assert (step.kind, step.bytes) == ("collective-permute", 6400)
    assert step.seconds == pytest.approx((10 + 6400 / 100) + (1 + 2 * 6400 / 1000))


def test_slow_links_carry_shards_and_fast_links_the_rest():
    """[x, -] → [-, -]: cut by y for nothing, send an eighth over x, gather over y."""
    steps = table().path(sharding((X,), ()), sharding((), ()))
    assert kinds(steps) == ["slice", "all-gather", "all-gather"]
    direct = all_gather(MESH, (X,), 25600).seconds
    assert sum(step.seconds for step in steps) < direct
    assert [step.axes for step in steps] == [(Y,), (X,), (Y,)]


def test_steps_report_what_moves():
    (step,) = table().path(sharding((Y,), ()), sharding((), (Y,)))
    assert (step.axes, step.dims, step.bytes) == ((Y,), (0, 1), 6400)
    (step,) = table().path(sharding((), ()), sharding((Y,), (X,)))
    assert (step.axes, step.dims, step.bytes) == ((X, Y), (0, 1), 3200)


def test_waypoints_lie_between():
    source, target = sharding((X,), ()), sharding((), ())
    steps = table().path(source, target)
    assert table().waypoints(source, target) == tuple(step.result for step in steps[:-1])
    assert table().waypoints(source, source) == ()
    assert table().waypoints(sharding((), ()), sharding((X,), ())) == ()


# --- Laws -----------------------------------------------------------------------------------

links = st.builds(Link, st.floats(1.0, 1e4), st.floats(0.0, 1.0))


@st.composite
def tables(draw):
    """Draws a small tensor on a mesh of one to three axes with links of any speed."""
    shape = draw(st.sampled_from([(6,), (8,), (2, 4), (4, 2), (2, 2), (1, 8), (2, 3), (2, 2, 2)]))
    names = ("x", "y", "z")[: len(shape)]
    mesh = DeviceMesh(shape, names, tuple(draw(links) for _ in shape), MACHINE)
    sizes = st.sampled_from([0, 1, 2, 4, 6, 8, 12])
    tensor = tuple(draw(st.lists(sizes, max_size=3 if len(shape) < 3 else 2)))
    return ReshardingTable(mesh, tensor, draw(st.sampled_from([1, 2, 4])))


def graph_of(t):
    return move_graph(t.mesh.shape, divisible_pattern(t.shape, t.mesh))


def moves_of(graph):
    """Yields (source, target, move) for all moves of a graph."""
    for source, target in np.ndindex(len(graph.states), len(graph.states)):
        for move in graph.moves(source, target):
            yield source, target, move


def states_of(t):
    return graph_of(t).states


@given(tables())
def test_the_matrix_is_a_metric_without_symmetry(t):
    states = states_of(t)
    seconds = t.seconds_matrix(states, states)
    assert seconds.shape == (len(states), len(states))
    assert np.all(np.isfinite(seconds))
    assert np.all(np.diag(seconds) == 0)
    # A slice of nothing over links without latency is free; everything else takes time.
    least = 0 if t.tensor_bytes == 0 else np.finfo(float).tiny
    assert np.all(seconds + np.eye(len(states)) >= least)
    through = (seconds[:, :, None] + seconds[None, :, :]).min(axis=1)
    assert np.all(seconds <= through * (1 + 1e-9))


@given(tables(), st.data())
def test_matrix_path_and_seconds_agree(t, data):
    states = states_of(t)
    source, target = data.draw(st.sampled_from(states)), data.draw(st.sampled_from(states))
    steps = t.path(source, target)
    assert sum(step.seconds for step in steps) == pytest.approx(t.seconds(source, target))
    assert t.seconds_matrix([source], [target]) == t.seconds(source, target)
    assert (steps[-1].result if steps else source) == target
    assert (source == target) == (not steps)


@given(tables())
def test_an_independent_search_finds_no_shorter_path(t):
    """Dijkstra with a heap over the single moves, from the replicated tensor."""
    graph = graph_of(t)
    moves = [(s, e, move.seconds(t.moved)) for s, e, move in moves_of(graph)]
    distances, queue = {}, [(0.0, 0)]
    while queue:
        distance, state = heapq.heappop(queue)
        if state in distances:
            continue
        distances[state] = distance
        for source, target, seconds in moves:
            if source == state:
                heapq.heappush(queue, (distance + seconds, target))
    found = t.seconds_matrix([graph.states[0]], graph.states)[0]
    np.testing.assert_allclose(found, [distances[i] for i in range(len(graph.states))], rtol=1e-9)


@given(tables(), st.integers(2, 9))
def test_a_larger_tensor_never_takes_less_time(t, factor):
    larger = ReshardingTable(t.mesh, t.shape, t.itemsize * factor)
    states = states_of(t)
    small, large = (u.seconds_matrix(states, states) for u in (t, larger))
    assert np.all(small <= large * (1 + 1e-9))
    assert np.all(large <= small * factor * (1 + 1e-9))


@given(tables())
def test_all_to_alls_go_back_at_the_same_price(t):
    graph = graph_of(t)
    for source, target, move in moves_of(graph):
        if move.kind == "all-to-all":
            assert move in graph.moves(target, source)


# --- What the devices hold ------------------------------------------------------------------


def blocks(s, shape, mesh):
    """Returns, for each device, the set of elements that it holds."""
    elements = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    held = {}
    for device in product(*map(range, mesh.shape)):
        part = elements
        for dim, axes in enumerate(s.dims):
            index, count = 0, 1
            for axis in axes:
                index = index * mesh.shape[axis] + device[axis]
                count *= mesh.shape[axis]
            part = np.array_split(part, count, axis=dim)[index]
        held[device] = frozenset(part.ravel().tolist())
    return held


def group(device, axes, mesh):
    """Returns the devices that a collective over `axes` connects with `device`."""
    ranges = [range(n) if i in axes else (device[i],) for i, n in enumerate(mesh.shape)]
    return list(product(*ranges))


def can_permute(before, after, axes, mesh):
    """Returns whether each device can get its block from a device of its group, no two from the
    same one.

    The answer is a perfect matching, found by augmenting paths.
    """
    giver_of, taken = {}, {}

    def assign(receiver, seen):
        for giver in group(receiver, axes, mesh):
            if giver not in seen and after[receiver] <= before[giver]:
                seen.add(giver)
                if giver not in taken or assign(taken[giver], seen):
                    taken[giver], giver_of[receiver] = receiver, giver
                    return True
        return False

    return all(assign(receiver, set()) for receiver in after)


@pytest.mark.parametrize("mesh_shape", [(6,), (2, 4), (4, 2), (2, 3), (2, 2), (1, 8), (2, 2, 2)])
@pytest.mark.parametrize("shape", [(), (24,), (12, 8), (8, 3, 4)])
def test_every_move_can_be_carried_out_with_the_bytes_it_claims(mesh_shape, shape):
    t = ReshardingTable(DeviceMesh.create(mesh_shape, "cpu"), shape, 4)
    graph = graph_of(t)
    held = [blocks(state, t.shape, t.mesh) for state in graph.states]
    for source, target, move in moves_of(graph):
        before, after = held[source], held[target]
        local_bytes = t.tensor_bytes // move.shards
        assert all(len(part) * t.itemsize == local_bytes for part in after.values())
        if move.kind == "slice":
            assert all(after[d] <= before[d] for d in after)
        elif move.kind == "collective-permute":
            assert can_permute(before, after, move.axes, t.mesh)
        else:
            for device, wanted in after.items():
                members = group(device, move.axes, t.mesh)
                assert wanted <= frozenset().union(*(before[m] for m in members))


# --- Sizes, trivial axes, refusals ----------------------------------------------------------


@pytest.mark.parametrize("rank", range(7))
def test_all_ranks_on_two_axes(rank):
    t = table((8,) * rank)
    found = enumerate_shardings(t.shape, MESH)
    assert len(found) == (rank + 1) ** 2
    seconds = t.seconds_matrix(found, found)
    assert np.all(np.isfinite(seconds))
    # Without elements only latencies are left, and the cheapest way still exists.
    empty = ReshardingTable(MESH, (0,) * rank, 4).seconds_matrix(found, found)
    assert np.all(empty <= seconds)


def test_three_axes_and_rank_four():
    mesh = DeviceMesh.create((2, 2, 2), "h100-sxm")
    t = ReshardingTable(mesh, (8, 8, 8, 8), 2)
    found = enumerate_shardings(t.shape, mesh)
    assert len(found) == 5**3
    assert np.all(np.isfinite(t.seconds_matrix(found, found)))


def test_a_joint_all_to_all_keeps_the_order_of_axes():
    mesh = DeviceMesh.create((2, 4), "h100-sxm")
    t = ReshardingTable(mesh, (1600, 3200), 4)
    (step,) = t.path(sharding((X, Y), ()), sharding((), (X, Y)))
    assert (step.kind, step.axes) == ("all-to-all", (X, Y))
    assert step.seconds == all_to_all(mesh, (X, Y), step.bytes).seconds
    (step,) = t.path(sharding((X, Y), ()), sharding((Y, X), ()))
    assert (step.kind, step.axes) == ("collective-permute", (X, Y))
    assert step.seconds == collective_permute(mesh, (X, Y), step.bytes).seconds


def test_axes_of_size_one_are_dropped():
    mesh = DeviceMesh.create((1, 8), "cpu")
    t = ReshardingTable(mesh, (8, 8), 4)
    assert t.seconds(sharding((X, Y), ()), sharding((Y,), ())) == 0.0
    assert t.seconds(sharding((X,), ()), sharding((), ())) == 0.0
    (step,) = t.path(sharding((X, Y), ()), sharding((), (X,)))
    assert step.result == sharding((), ())


def test_pieces_that_straddle_cannot_be_permuted():
    """Thirds of a dimension do not lie within halves: a permute cannot deliver them."""
    t = table((12,), DeviceMesh.create((2, 3), "cpu"))
    assert kinds(t.path(sharding((X,)), sharding((Y,)))) != ["collective-permute"]


def test_paths_are_shared_between_tables_of_equal_bytes():
    one, other = table((80, 160), itemsize=2), table((160, 80), itemsize=2)
    assert one._paths is other._paths
    assert table((80, 81))._paths is not table((81, 80))._paths


def test_the_shared_matrix_cannot_be_changed_by_a_caller():
    t, replicated = table(), sharding((), ())
    before = t.seconds(replicated, sharding((X,), ()))
    copy = t.seconds_matrix([replicated], [sharding((X,), ())])
    copy[:] = 7.0
    assert t.seconds(replicated, sharding((X,), ())) == before


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (sharding((X,), (), ()), "3 dimensions, shape"),
        (sharding((), (Y,)), r"Dimension 1 of shape \(8, 6\) cannot be cut into 4 equal pieces"),
        (sharding((2,), ()), "uses mesh axis 2"),
    ],
)
def test_shardings_that_do_not_fit_are_refused(bad, what):
    t, good = table((8, 6)), sharding((), ())
    for call in (
        lambda: t.seconds(bad, good),
        lambda: t.path(good, bad),
        lambda: t.seconds_matrix([good], [good, bad]),
    ):
        with pytest.raises(ShardingConflictError, match=what):
            call()


@pytest.mark.parametrize(("shape", "itemsize"), [((-1,), 4), ((2,), 0)])
def test_impossible_tensors_are_refused(shape, itemsize):
    with pytest.raises(InvalidArgumentError, match="does not exist"):
        ReshardingTable(MESH, shape, itemsize)
