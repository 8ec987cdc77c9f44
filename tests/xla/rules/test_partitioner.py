"""Predicted collectives against those in programs that XLA compiles for eight CPU devices.

XLA:CPU and XLA:GPU share the partitioner, so both have the same collectives.
"""

import re
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from kiwi.mesh import DeviceMesh, ReshardingTable, TensorSharding, enumerate_shardings
from kiwi.mesh.moves import divisible_pattern, move_graph

SHAPE = (16, 32)
COLLECTIVE = re.compile(
    r"= (?P<result>.*?) (?P<kind>all-gather|all-to-all|collective-permute|all-reduce|"
    r"reduce-scatter)(?:-start)?\("
)


def compile_reshard(mesh, source, target, waypoints=()):
    jax_mesh = mesh.jax_mesh()

    def place(sharding):
        return NamedSharding(jax_mesh, mesh.partition_spec(sharding))

    def reshard(value):
        value = value + 1
        for waypoint in waypoints:
            value = jax.lax.with_sharding_constraint(value, place(waypoint))
        return value

    jitted = jax.jit(reshard, in_shardings=place(source), out_shardings=place(target))
    return jitted.lower(jax.ShapeDtypeStruct(SHAPE, jnp.float32)).compile()


def emitted(compiled):
    """Returns (kind, bytes of the result on one device) of each collective, sorted."""
    found = []
    for line in compiled.as_text().splitlines():
        if match := COLLECTIVE.search(line):
            shapes = re.findall(r"f32\[([\d,]*)\]", match["result"])
            size = sum(4 * prod(int(n) for n in dims.split(",") if n) for dims in shapes)
            found.append((match["kind"], size))
    return sorted(found)


def predicted(steps):
    return sorted((step.kind, step.bytes) for step in steps if step.kind != "slice")


def communications(table):
    """Returns all pairs of states with a single move between them that is also the cheapest
    path."""
    graph = move_graph(table.mesh.shape, divisible_pattern(table.shape, table.mesh))
    for source, target in np.argwhere((graph.ways >= 0).any(axis=0)):
        steps = table.path(graph.states[source], graph.states[target])
        if len(steps) == 1:
            yield graph.states[source], graph.states[target], steps


def test_where_one_move_suffices_xla_emits_just_that():
    table = ReshardingTable(DeviceMesh.create((2, 4), "cpu"), SHAPE, 4)
    seen = set()
    for source, target, steps in communications(table):
        found = emitted(compile_reshard(table.mesh, source, target))
        assert found == predicted(steps), table.mesh.describe(source)
        seen.update(step.kind for step in steps)
    assert seen == {"all-gather", "all-to-all", "collective-permute", "slice"}


def test_waypoints_make_xla_take_the_cheapest_chain():
    # The slow links between nodes make for long chains. Priced large, so that bandwidth decides;
    # compiled small, at the same divisibility.
    mesh = DeviceMesh.create((2, 4), "v100-sxm2")
    scale = 1000
    large = ReshardingTable(mesh, (SHAPE[0] * scale, SHAPE[1] * scale), 4)
    shardings = enumerate_shardings(SHAPE, mesh)
    pairs = [(a, b) for a in shardings for b in shardings if large.waypoints(a, b)]
    assert len(pairs) > 30
    for source, target in pairs[::3]:
        waypoints = large.waypoints(source, target)
        found = emitted(compile_reshard(mesh, source, target, waypoints))
        steps = predicted(large.path(source, target))
        expected = [(kind, size // scale**2) for kind, size in steps]
        assert found == expected, f"{mesh.describe(source)} → {mesh.describe(target)}"


def test_left_alone_xla_may_gather_the_whole_tensor():
    """Why waypoints exist: the partitioner falls back to replication (and warns)."""
    mesh = DeviceMesh.create((2, 4), "h100-sxm")
    table = ReshardingTable(mesh, (SHAPE[0] * 1000, SHAPE[1] * 1000), 4)
    source, target = TensorSharding(((0, 1), ())), TensorSharding(((), (0,)))
    tensor_bytes = 4 * prod(SHAPE)
    assert emitted(compile_reshard(mesh, source, target)) == [("all-gather", tensor_bytes)]
    guided = emitted(compile_reshard(mesh, source, target, table.waypoints(source, target)))
    assert guided == [("all-gather", tensor_bytes // 2), ("all-to-all", tensor_bytes // 8)]


def test_the_resharded_value_is_right():
    mesh = DeviceMesh.create((2, 4), "v100-sxm2")
    table = ReshardingTable(mesh, SHAPE, 4)
    source, target = TensorSharding(((0,), (1,))), TensorSharding(((), (0,)))
    compiled = compile_reshard(mesh, source, target, table.waypoints(source, target))
    value = np.arange(prod(SHAPE), dtype=np.float32).reshape(SHAPE)
    placed = jax.device_put(value, NamedSharding(mesh.jax_mesh(), mesh.partition_spec(source)))
    np.testing.assert_array_equal(compiled(placed), value + 1)
