"""Work of Pallas kernels over their grids, against kernels that are evaluated place by place."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

from kiwi.hlo.regions.work import equation_flops, inner_jaxprs

BLOCK = 32


def kernel_flops(function, *shapes):
    """Returns the FLOPs of the only `pallas_call` of a function."""

    def calls(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == "pallas_call":
                yield eqn
            else:
                for region in inner_jaxprs(eqn):
                    yield from calls(region)

    args = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    (call,) = calls(jax.make_jaxpr(function)(*args).jaxpr)
    return equation_flops(call)


def matmul_where(runs):
    """Returns the number of places of a grid of (4, 6) that count as multiplying two blocks, if the
    places for which `runs` holds do."""

    def kernel(x, y, z):
        @pl.when(runs(pl.program_id(0), pl.program_id(1), pl.num_programs(1)))
        def _():
            z[...] = x[...] @ y[...]

    def call(x, y):
        block = pl.BlockSpec((BLOCK, BLOCK), lambda i, j: (i, j))
        return pl.pallas_call(kernel, x, grid=(4, 6), in_specs=[block, block], out_specs=block)(
            x, y
        )

    shape = 4 * BLOCK, 6 * BLOCK
    return kernel_flops(call, shape, shape) / (2 * BLOCK**3)


@pytest.mark.parametrize(
    "runs",
    [
        lambda i, j, n: j <= i,
        lambda i, j, n: (j + 1) * 3 - 5 > (i - 7) // 2 + 8,
        lambda i, j, n: jax.lax.rem(i + j, 2) == 0,
        lambda i, j, n: (i > 1) & (j < n - 2),
    ],
    ids=["causal", "divided", "alternating", "corner"],
)
def test_a_branch_counts_where_it_runs(runs):
    places = [(i, j) for i in range(4) for j in range(6)]
    expected = sum(bool(runs(jnp.int32(i), jnp.int32(j), 6)) for i, j in places)
    assert 0 < expected < 24
    assert matmul_where(runs) == pytest.approx(expected, rel=0.25)


def test_a_loop_counts_the_trips_that_its_place_gives_it():
    """Five blocks for the first row of the grid, six for the second, and so on."""

    def kernel(x, z):
        def body(k, total):
            return total + x[...] @ x[...]

        z[...] = jax.lax.fori_loop(2, pl.program_id(0) + 7, body, jnp.zeros((BLOCK, BLOCK)))

    def call(x):
        block = pl.BlockSpec((BLOCK, BLOCK), lambda i: (i, 0))
        return pl.pallas_call(kernel, x, grid=(4,), in_specs=[block], out_specs=block)(x)

    found = kernel_flops(call, (4 * BLOCK, BLOCK)) / (2 * BLOCK**3)
    assert found == pytest.approx(5 + 6 + 7 + 8, rel=0.1)


def test_what_depends_on_data_counts_its_costliest_branch():
    def kernel(x, z):
        z[...] = jax.lax.cond(x[0, 0] > 0, lambda x: x @ x, lambda x: x, x[...])

    def call(x):
        return pl.pallas_call(kernel, x)(x)

    found = kernel_flops(call, (BLOCK, BLOCK)) / (2 * BLOCK**3)
    assert found == pytest.approx(1, rel=0.1)


def test_a_causal_mask_leaves_out_what_is_above_the_diagonal():
    shape = 1, 1, 1024, 128
    causal, full = (
        kernel_flops(partial(flash_attention, causal=causal), *[shape] * 3)
        for causal in (True, False)
    )
    blocks = 1024 // 128
    assert causal / full == pytest.approx((blocks + 1) / 2 / blocks, rel=0.03)
