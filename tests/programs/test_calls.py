"""Calls that Kiwi does not look into: manual computations, unknown primitives, kernels, regions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import PartitionSpec

import kiwi
from kiwi.hlo.regions.memory import region_workspace_bytes
from kiwi.hlo.regions.work import region_flops, trips
from kiwi.hlo.trips import DEFAULT_TRIPS
from kiwi.problem.strategies import enumerate_strategies
from tests.helpers.on_cpu import ON_CPU
from tests.helpers.planning import array, kernels_of, units_of

W = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32) / 4
X = np.random.default_rng(1).standard_normal((8, 16)).astype(np.float32)


def assert_same(planned: Any, function: Any, *args: Any) -> None:
    expected = jax.tree.leaves(jax.jit(function)(*args))
    for got, wanted in zip(jax.tree.leaves(planned(*args)), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def exchange(mesh: Any) -> Any:
    """Returns a gradient through an all-to-all between fixed layouts."""

    def swap(x: jax.Array) -> jax.Array:
        return jax.lax.all_to_all(jnp.sin(x), "y", split_axis=0, concat_axis=1, tiled=True)

    spec = PartitionSpec("x", "y"), PartitionSpec(("x", "y"), None)
    mapped = jax.shard_map(swap, mesh=mesh, in_specs=spec[0], out_specs=spec[1])
    return jax.value_and_grad(lambda w, x: jnp.mean((mapped(jnp.tanh(x @ w)) @ w) ** 2))


def test_shard_map_lies_as_it_says(make_mesh):
    mesh = make_mesh(2, 4)
    planned = kiwi.jit(exchange(mesh), mesh=mesh)
    plan = planned.plan(W, X)
    units = plan.execution.units
    (first, *_) = [
        u for u in units.units if units.graph.program.equations[u.root].name == "shard_map"
    ]
    (strategy,) = enumerate_strategies(plan.execution.kernels, first, plan.mesh)
    assert [s.dims for s in strategy.reads] == [((0,), (1,))]
    assert ((0, 1), ()) in [s.dims for s in strategy.results]
    assert [(c.kind, c.axes, c.bytes) for c in strategy.collectives] == [("all-to-all", (1,), 64)]
    assert plan.unforeseen_collectives == ()
    assert plan.notes[0].text == "Left as written, between the layouts that it names: shard_map."
    assert_same(planned, exchange(mesh), W, X)


def test_shard_map_on_a_mesh_of_other_axes_is_replicated(make_mesh):
    mesh = make_mesh(4, 2, axis_names=("a", "b"))
    other = jax.shard_map(
        jnp.sin, mesh=mesh, in_specs=PartitionSpec("a"), out_specs=PartitionSpec("a")
    )
    planned = kiwi.jit(lambda w, x: other(x @ w) @ w, mesh_shape=(2, 4), verify=None)
    (note,) = planned.plan(W, X).notes
    assert note.text.startswith("Planned whole and replicated: shard_map")
    assert note.text.endswith("over the mesh a=4, b=2.")
    assert_same(planned, planned.function, W, X)


def primitive(name: str, function: Any) -> Any:
    """Returns a foreign primitive, of which only the lowering is known."""
    found = Primitive(name)
    found.def_impl(function)
    found.def_abstract_eval(lambda x: x)
    mlir.register_lowering(found, mlir.lower_fun(function, multiple_results=False))
    return found


ORTHOGONAL = primitive("orthogonalised", lambda x: jnp.linalg.qr(x)[0])
SINE = primitive("my_sine", jnp.sin)


def test_an_unknown_primitive_is_replicated_and_kept():
    def loss(w, x):
        return jnp.mean(jax.lax.stop_gradient(ORTHOGONAL.bind(x.T @ x)) @ w @ jnp.tanh(w))

    step = jax.value_and_grad(loss)
    planned = kiwi.jit(step, mesh_shape=(2, 4), verify=None)
    plan = planned.plan(W, X)
    assert "Without a sharding rule, replicated and kept: orthogonalised." in [
        note.text for note in plan.notes
    ]
    graph = plan.execution.units.graph
    (unit,) = [
        u
        for u in plan.execution.units.units
        if graph.program.equations[u.root].name == "orthogonalised"
    ]
    assert not unit.may_recompute
    assert all(not s.axes_used for s in plan.execution.reads[unit.index])
    assert_same(planned, step, W, X)


def test_a_primitive_that_lowers_to_known_operators_is_sharded_like_them():
    units = units_of(lambda x: SINE.bind(x), array(8, 16))
    (unit,) = units.units
    layouts = [s.results for s in enumerate_strategies(kernels_of(units), unit, mesh_of(2, 4))]
    assert len(layouts) > 4


def mesh_of(*shape: int) -> Any:
    return kiwi.mesh.DeviceMesh.create(shape, "h100-sxm")


def test_a_kernel_of_pallas_runs_under_a_plan():
    def kernel(read, written):
        written[...] = jnp.sin(read[...])

    shape = jax.ShapeDtypeStruct(X.shape, X.dtype)
    sine = pl.pallas_call(kernel, out_shape=shape, interpret=True)
    function = lambda w, x: jnp.tanh(sine(x @ w) @ w)  # noqa: E731
    assert_same(kiwi.jit(function, mesh_shape=(2, 4), verify=None), function, W, X)


@pytest.mark.parametrize("respected", [False, True])
def test_checkpoints_of_the_user_are_a_floor_or_planned_anew(respected):
    def loss(w, x):
        layer = jax.checkpoint(lambda x: jnp.tanh(jnp.tanh(x @ w) @ w))
        return jnp.mean(layer(layer(x)) ** 2)

    step = jax.value_and_grad(loss)
    planned = kiwi.jit(step, mesh_shape=(2,), verify=None, respect_user_checkpoint=respected)
    program = planned.plan(W, X).execution.units.graph.program
    matmuls = sum(e.name == "dot_general" for e in program.equations)
    # Four in the forward pass, two for each of their gradients; as asked for, some of those again.
    assert (matmuls > 11) == respected
    assert_same(planned, step, W, X)


def eqn_of(name: str, function: Any, *args: Any) -> Any:
    (found,) = [e for e in jax.make_jaxpr(function)(*args).jaxpr.eqns if e.primitive.name == name]
    return found


def test_the_trips_of_a_while_are_counted_where_it_counts():
    square = lambda _, x: x @ x  # noqa: E731
    known = eqn_of(
        "while",
        lambda x: jax.lax.while_loop(lambda s: s[0] < 7, lambda s: (s[0] + 1, s[1] @ s[1]), (2, x)),
        array(4, 4),
    )
    unknown = eqn_of(
        "while", lambda n, x: jax.lax.fori_loop(0, n, square, x), array(dtype="int32"), array(4, 4)
    )
    assert (trips(known), trips(unknown)) == (5, DEFAULT_TRIPS)
    assert 5 * 2 * 4**3 <= region_flops(known) <= 5 * (2 * 4**3 + 2)


def test_a_counter_in_a_region_may_count_by_more_than_one():
    by_three = eqn_of(
        "while",
        lambda x: jax.lax.while_loop(
            lambda s: s[0] < 20, lambda s: (s[0] + 3, s[1] @ s[1]), (2, x)
        ),
        array(4, 4),
    )
    assert trips(by_three) == 6


def test_a_region_holds_what_is_alive_at_its_peak():
    def branch(p, x, up, down):
        return jax.lax.cond(p, lambda x: jnp.tanh(x @ up) @ down, lambda x: x, x)

    shapes = array(dtype="bool"), array(8, 16), array(16, 64), array(64, 16)
    found = region_workspace_bytes(eqn_of("cond", branch, *shapes))
    wide = 4 * 8 * 64
    assert wide <= found <= 2 * wide


def test_the_memory_of_a_while_is_foreseen():
    def function(n, x):
        def body(_, x):
            wide = jnp.sin(x[:, :, None] * jnp.arange(64.0))
            return jnp.sum(jnp.sort(wide, axis=-1), -1) / 64

        return jax.lax.fori_loop(0, n, body, x)

    plan = kiwi.plan(function, array(dtype="int32"), array(64, 64), mesh_shape=(1,), profile=ON_CPU)
    assert 0.5 < plan.estimate.peak_bytes / plan.compiled.peak_bytes < 1.6
