"""Memory inside of regions."""

import jax
import jax.numpy as jnp

from kiwi.hlo.regions.memory import region_workspace_bytes, stored_results

ROWS, WIDTH = 64, 32


def workspace_bytes(body):
    x = jnp.ones((ROWS, WIDTH))
    jaxpr = jax.make_jaxpr(lambda x: jax.lax.cond(x[0, 0] > 0, body, jnp.sin, x))(x)
    return region_workspace_bytes(next(e for e in jaxpr.eqns if e.primitive.name == "cond"))


def test_an_operand_that_is_repeated_along_dimensions_of_one_is_fused():
    """One number for each row; what is multiplied by it never is an array."""

    def normalised(x):
        return jnp.tanh(x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True)))

    assert workspace_bytes(normalised) <= 2 * ROWS * 4


def test_products_of_square_matrices_are_arrays():
    square = lambda x: jnp.sin((x.T @ x) @ jnp.cos(x.T)).T  # noqa: E731
    assert workspace_bytes(square) >= WIDTH * WIDTH * 4


def test_functions_that_are_called_are_part_of_the_region():
    """A selection inside of one is fused with its only reader, as it is outside of one."""

    def selected(x):
        y = jnp.where(x > 0.5, x, 0.0)
        return jnp.tanh(jnp.sum(y[None], 0) + 1.0)

    assert workspace_bytes(selected) == 0


def test_what_updates_a_part_is_written_in_place():
    """The product, and the product with a row set to zero, are one buffer."""

    def updated(x):
        return jnp.sin((x @ x.T).at[0].set(0.0)) @ x

    assert workspace_bytes(updated) <= 2 * ROWS * ROWS * 4


def _region(step):
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    manual = jax.shard_map(step, mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d"))
    jaxpr = jax.make_jaxpr(manual)(jnp.ones((ROWS, ROWS)))
    return next(e for e in jaxpr.eqns if e.primitive.name == "shard_map")


def test_maps_of_what_a_region_yields_are_computed_again():
    """As what the backward pass reads of an activation behind a matmul."""
    region = _region(lambda x: ((y := x @ x), jnp.tanh(y), 1.0 - jnp.tanh(y) ** 2, x))
    assert stored_results(region, lambda _: False) == (True, False, False, True)
    assert stored_results(region, lambda _: True) == (True, False, False, False)


def test_maps_that_a_matmul_reads_are_stored():
    region = _region(lambda x: (y := x @ x, z := jnp.tanh(y), z @ y))
    assert stored_results(region, lambda _: True) == (True, True, True)


def test_maps_of_what_is_gone_are_stored():
    """Their operand is no result."""
    region = _region(lambda x: (jnp.tanh(x @ x), x))
    assert stored_results(region, lambda _: True) == (True, False)
