"""Traced functions without the meshes that they were traced under."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core as jex
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from kiwi.hlo.explicit_axes import constrained_spec, without_meshes
from kiwi.hlo.regions.work import inner_jaxprs
from kiwi.hlo.sharding_constraints import constraint_spec, is_constraint

OPEN = PartitionSpec.UNCONSTRAINED
P = PartitionSpec
W = {"up": (64, 256), "down": (256, 64)}


def mesh_of(*kinds: AxisType) -> AbstractMesh:
    return AbstractMesh((2, 4), ("data", "model"), axis_types=kinds)


EXPLICIT = mesh_of(AxisType.Explicit, AxisType.Explicit)
MIXED = mesh_of(AxisType.Explicit, AxisType.Auto)
AUTO = mesh_of(AxisType.Auto, AxisType.Auto)


def traced(function, *shapes, mesh=EXPLICIT, specs=None, **options):
    specs = specs or [None] * len(shapes)
    args = [
        jax.ShapeDtypeStruct(s, "float32", sharding=spec and NamedSharding(mesh, spec))
        for s, spec in zip(shapes, specs, strict=True)
    ]
    with jax.sharding.use_abstract_mesh(mesh):
        closed = jax.make_jaxpr(function)(*args)
    return without_meshes(closed, **options)


def all_equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for region in inner_jaxprs(eqn):
            yield from all_equations(region)


def asked(closed):
    """Returns the spec of each constraint, in order."""
    eqns = (e for e in all_equations(closed.jaxpr) if is_constraint(e))
    return [constraint_spec(e) for e in eqns]


def meshes(closed):
    """Yields all remaining meshes of types and contexts, except the meshes of constraints'
    results."""
    for eqn in all_equations(closed.jaxpr):
        yield eqn.ctx.cur_abstract_mesh
        for atom in (*eqn.invars, *eqn.outvars):
            yield atom.aval.sharding.mesh
            if isinstance(atom, jex.Literal):
                yield jax.typeof(atom.val).sharding.mesh


def mlp(up, down, x):
    h = jnp.einsum("bd,df->bf", x, up, out_sharding=P("data", "model"))
    y = jnp.einsum("bf,fd->bd", jax.nn.gelu(h), down, out_sharding=P("data"))
    return jnp.mean((x - y) ** 2)


SHAPES = (64, 256), (256, 64), (32, 64)


def test_nothing_of_the_mesh_is_left():
    closed = traced(jax.value_and_grad(mlp, (0, 1)), *SHAPES)
    assert {mesh for mesh in meshes(closed) if not mesh.empty} == set()
    assert not any(
        isinstance(value, NamedSharding)
        for eqn in all_equations(closed.jaxpr)
        if not is_constraint(eqn)
        for value in eqn.params.values()
    )


def test_the_result_is_the_same():
    values = [np.random.default_rng(k).normal(size=s).astype("f") for k, s in enumerate(SHAPES)]
    function = jax.value_and_grad(mlp, (0, 1))
    with jax.set_mesh(jax.make_mesh((2, 4), ("data", "model"))):
        expected = jax.tree.leaves(jax.jit(function)(*values))
    plain = without_meshes(traced(function, *SHAPES), follows=False)
    for left, right in zip(jex.jaxpr_as_fun(plain)(*values), expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-3, atol=1e-4)


def test_out_sharding_constrains_results_and_not_what_differentiation_adds():
    forward = [P("data", "model"), P("data", None)]
    assert asked(traced(mlp, *SHAPES)) == forward
    specs = [P("data", "model"), P("model", "data"), P("data", None)]
    assert asked(traced(jax.grad(mlp, (0, 1)), *SHAPES, specs=specs)) == forward


def test_reshard_constrains_what_it_returns_and_its_cotangent():
    def function(x):
        return jnp.sum(jax.sharding.reshard(jnp.tanh(x), P("data", "model")) ** 2)

    assert asked(traced(function, (32, 64))) == [P("data", "model")]
    # The cotangent comes in as the value went out, and leaves as nobody has asked for.
    assert asked(traced(jax.grad(function), (32, 64))) == [P("data", "model")] * 2


def test_a_constraint_in_auto_axes_of_an_explicit_mesh():
    @jax.sharding.auto_axes(out_sharding=P("data", None))
    def inner(x):
        return jax.lax.with_sharding_constraint(jnp.tanh(x), P(None, "model"))

    assert asked(traced(inner, (32, 64))) == [P(None, "model"), P("data", None)]


def test_explicit_axes_in_an_auto_mesh():
    inner = jax.sharding.explicit_axes(jnp.tanh, in_sharding=P("data", "model"))
    assert asked(traced(inner, (32, 64), mesh=AUTO)) == [P("data", "model")]


def test_what_a_mixed_mesh_leaves_open_stays_open():
    def function(x, w):
        y = jnp.matmul(x, w, out_sharding=P("data"))
        return jax.lax.with_sharding_constraint(y, P(None, "model"))

    found = traced(function, (32, 64), (64, 64), mesh=MIXED)
    assert asked(found) == [P("data", OPEN), P("data", "model")]
    assert constrained_spec(NamedSharding(MIXED, P(None)), 2) is None
    assert constrained_spec(NamedSharding(EXPLICIT, P(None)), 2) == P(None, None)


def test_a_jit_inside_of_the_function_asks_by_its_shardings():
    def function(x):
        sharding = NamedSharding(AUTO, P("data", None))
        return jax.jit(jnp.tanh, out_shardings=sharding)(x)

    assert asked(traced(function, (32, 64), mesh=AUTO)) == [P("data", None)]


def test_nothing_is_asked_where_nothing_is_followed():
    def function(up, down, x):
        x = jax.sharding.reshard(x, P("data", "model"))
        return mlp(up, down, x)

    closed = traced(jax.value_and_grad(function, (0, 1)), *SHAPES, follows=False)
    assert asked(closed) == []
    constrained = lambda x: jax.lax.with_sharding_constraint(x, P("data"))  # noqa: E731
    assert asked(traced(constrained, (32, 64), mesh=AUTO, follows=False)) == []
    assert asked(traced(constrained, (32, 64), mesh=AUTO)) == [P("data", None)]


@pytest.mark.parametrize("mesh", [EXPLICIT, AUTO], ids=["explicit", "auto"])
def test_bodies_of_loops_and_manual_computations(mesh):
    """Manual axes stay: the body of a `shard_map` is written for one device."""

    def manual(x):
        return jax.lax.psum(2.0 * x, "model")

    def body(x, w):
        mapped = jax.shard_map(manual, in_specs=P("data", "model"), out_specs=P("data"))
        return jnp.tanh(x) + 0.0 * jnp.sum(mapped(x)) + 0.0 * jnp.sum(w), None

    specs = P("data", "model"), P(None, None)
    shapes = (32, 64), (3, 64)
    closed = traced(lambda x, ws: jax.lax.scan(body, x, ws)[0], *shapes, mesh=mesh, specs=specs)
    left = {mesh for mesh in meshes(closed) if not mesh.empty}
    assert {kind for mesh in left for kind in mesh.axis_types} == {AxisType.Manual}
    (region,) = [e for e in all_equations(closed.jaxpr) if e.primitive.name == "shard_map"]
    assert set(region.params["mesh"].axis_types) == {AxisType.Auto}
    whole = NamedSharding(jax.make_mesh((2, 4), ("a", "b"), (AxisType.Auto,) * 2), P())
    run = jax.jit(jex.jaxpr_as_fun(closed), in_shardings=(whole, whole))
    (result,) = run(jnp.ones((32, 64)), jnp.ones((3, 64)))
    np.testing.assert_allclose(result, jnp.tanh(jnp.tanh(jnp.tanh(jnp.ones((32, 64))))), rtol=1e-5)


def test_captured_arrays_have_no_explicit_axes():
    with jax.set_mesh(jax.make_mesh((2, 4), ("data", "model"))):
        captured = jnp.arange(64.0)
        closed = jax.make_jaxpr(lambda x: x + captured)(jax.ShapeDtypeStruct((64,), "float32"))
    (constant,) = without_meshes(closed).consts
    assert jax.typeof(constant).sharding.mesh.are_all_axes_auto
    np.testing.assert_array_equal(constant, np.arange(64.0))


def test_what_has_no_mesh_stays_the_same_object():
    closed = jax.make_jaxpr(jax.value_and_grad(lambda x: jnp.sum(jnp.tanh(x))))(1.0)
    assert without_meshes(closed) is closed


def test_a_sharding_over_no_axes_asks_nothing():
    """A Hessian's equations have them: what jax differentiates twice repeats types of operands."""
    weights = jnp.ones((2, 8)), jnp.ones((8, 1))

    def network(x):
        return (jnp.tanh(x @ weights[0]) @ weights[1]).sum()

    closed = without_meshes(jax.make_jaxpr(jax.vmap(jax.hessian(network)))(jnp.ones((4, 2))))
    assert asked(closed) == []
