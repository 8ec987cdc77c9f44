"""The operands that XLA:CPU copies before it reads them, for each rule and each way to shard the
operator."""

import jax
import jax.numpy as jnp
import pytest

from kiwi.targets.rules.cpu.cpu_copied_operands import CopiedMatrices
from tests.helpers.planning import array, units_of

X, Y = array(8, 4, 16), array(4, 8, 32)


def copied(function, *arguments):
    units = units_of(function, *arguments)
    (unit,) = [u for u in units.units if u.outputs[0] in units.graph.program.result_values]
    sizes = [units.graph.program.values[v].size_bytes for v, _ in unit.rule.reads]
    return CopiedMatrices.of(units, unit), unit, sizes


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("sd,sh->dh", []),  # a matrix is read transposed
        ("bsd,bsh->dh", [0]),  # two dimensions summed over, behind which there is one
        ("bsd,sbh->dh", [0, 1]),  # in the order of the left one
        ("bsd,bhs->bdh", []),  # a batch of matrices, one of them transposed
        ("sbd,sbh->bdh", [0, 1]),  # the batch does not come first
    ],
)
def test_matrices_that_lie_in_another_order_are_copied(pattern, expected):
    shapes = {"b": 8, "s": 4, "d": 16, "h": 32}
    one, other = pattern.split("->")[0].split(",")
    arrays = [array(*(shapes[k] for k in one)), array(*(shapes[k] for k in other))]
    found, _, sizes = copied(lambda x, y: jnp.einsum(pattern, x, y), *arrays)
    assert found.buffers({}, sizes, 0) == tuple(sizes[k] for k in expected)


def _convolved(x, w, order=("NHWC", "HWIO", "NHWC")):
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=order)


def _convolved_kernel_first(x, w):
    return _convolved(x, w, ("NHWC", "OIHW", "NHWC"))


def _kernel_gradient(x, g):
    w = jax.ShapeDtypeStruct((3, 3, x.shape[-1], g.shape[-1]), x.dtype)
    return jax.linear_transpose(lambda w: _convolved(x, w), w)(g)[0]


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (_convolved, ((2, 8, 8, 4), (3, 3, 4, 16)), []),
        (
            lambda x, w: _convolved(x, w, ("NHWC", "OIHW", "NHWC")),
            ((2, 8, 8, 4), (16, 4, 3, 3)),
            [1],
        ),
        (_kernel_gradient, ((2, 8, 8, 4), (2, 8, 8, 16)), [0, 1]),
    ],
    ids=["in order", "another order of the kernel", "gradient of the kernel"],
)
def test_convolutions_copy_what_lies_in_another_order(function, shapes, expected):
    found, _, sizes = copied(function, *(array(*shape) for shape in shapes))
    assert found.buffers({}, sizes, 0) == tuple(sizes[k] for k in expected)


def test_a_factor_of_which_a_device_has_one_element_lies_in_any_order():
    arrays = array(4, 8, 16), array(4, 8, 32)
    found, unit, sizes = copied(lambda x, y: jnp.einsum("sbd,sbh->bdh", x, y), *arrays)
    factors = unit.rule.reads[0][1]
    ((batch,),) = [f for f in factors if unit.rule.factor_sizes[f[0]] == 8]
    assert found.buffers({batch: 4}, sizes, 0) == tuple(sizes)
    assert found.buffers({batch: 8}, sizes, 0) == ()


def test_what_is_computed_for_a_concatenation_is_copied():
    x, y = array(8, 16), array(8, 48)
    found, _, sizes = copied(lambda x, y: jnp.concatenate([x, y * 2], 1), x, y)
    assert found.buffers({}, sizes, 8 * 64 * 4) == (8 * 48 * 4,)
    found, _, sizes = copied(lambda x, y: jnp.concatenate([x, y], 1), x, y)
    assert found.buffers({}, sizes, 8 * 64 * 4) == ()


def test_what_is_computed_for_a_sliding_window_is_there_before():
    def pooled(x):
        return jax.lax.reduce_window(x * 2, 0.0, jax.lax.add, (2, 2), (2, 2), "VALID")

    found, _, sizes = copied(pooled, array(8, 16))
    assert found.buffers({}, sizes, 4 * 8 * 4) == (8 * 16 * 4,)


def test_what_is_computed_for_the_gradient_of_max_pooling_is_there_before():
    def pooled(x):
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 2), (2, 2), "VALID")

    def gradient(x, g):
        return jax.vjp(pooled, x * 2)[1](g)[0]

    found, _, sizes = copied(gradient, array(8, 16), array(4, 8))
    assert found.buffers({}, sizes, 8 * 16 * 4) == (8 * 16 * 4,)
