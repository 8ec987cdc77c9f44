"""Reductions that are computed in the kernel of the operator that reads their rows again."""

import functools

import jax
import jax.numpy as jnp
import pytest

import kiwi
from kiwi.targets.rules.gpu.softmax_rows import LONGEST_ROW, reduced_for_readers
from tests.helpers.planning import kernels_of

ROWS = jax.ShapeDtypeStruct((64, 128), "float32")


def normalised(x):
    centred = x - jnp.mean(x, -1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-6)


def reductions(function, *args):
    """Returns the names of the reductions that run in the kernels of their readers, and the number
    of all reductions."""
    units = kiwi.jit(function, mesh_shape=(1,)).traced(*args).units
    names = [units.graph.program.equations[unit.root].name for unit in units.units]
    pairs = zip(names, units.units, strict=True)
    fused = reduced_for_readers(units)
    found = [(n, fused.get(u.index)) for n, u in pairs if n.startswith("reduce_")]
    return [name for name, factors in found if factors], len(found)


@pytest.mark.parametrize(
    ("function", "fused"),
    [
        (jax.nn.softmax, ["reduce_max", "reduce_sum"]),
        (normalised, ["reduce_sum", "reduce_sum"]),
        (lambda x: x / x.sum(-1, keepdims=True), ["reduce_sum"]),
        # Columns are not in one piece.
        (lambda x: jax.nn.softmax(x, axis=0), []),
        # Nobody reads the rows again.
        (lambda x: x.max(-1), []),
        (lambda x: jax.nn.logsumexp(x, axis=-1), []),
        # A matrix product reads what is reduced.
        (lambda x: x.max(-1) @ x, []),
    ],
)
def test_softmax_and_normalisation_reduce_for_their_readers(function, fused):
    assert reductions(lambda x: function(2 * x), ROWS)[0] == fused


def test_longer_rows_are_reduced_apart():
    longest, longer = (jax.ShapeDtypeStruct((2, LONGEST_ROW + n), "float32") for n in (0, 1))
    assert len(reductions(jax.nn.softmax, longest)[0]) == 2
    assert reductions(jax.nn.softmax, longer) == ([], 2)


def test_a_gradient_reduces_rows_in_the_same_way():
    """The mean and the variance are read in the backward pass only, where two sums of products go
    to the kernel that writes the gradient."""
    gradient = jax.grad(lambda x: jnp.sum(normalised(jnp.sin(x)) ** 3))
    assert reductions(gradient, ROWS) == (["reduce_sum", "reduce_sum"], 4)


def test_exponentials_that_the_backward_pass_needs_are_summed_apart():
    """The maximum and the sum are kernels of their own; a sum of products is not."""
    gradient = jax.value_and_grad(lambda x: jnp.sum(jax.nn.softmax(2 * x) ** 3))
    assert reductions(gradient, ROWS) == (["reduce_sum"], 4)


def attention(q: jax.Array, k: jax.Array, v: jax.Array, *, is_causal: bool) -> jax.Array:
    """Attention of arrays (heads, sequence, features)."""
    scores = 0.125 * (q @ jnp.swapaxes(k, 1, 2)).astype("float32")
    mask = jnp.tril(jnp.ones(scores.shape[1:], bool))
    scores = jnp.where(mask[None], scores, -1e9) if is_causal else scores
    return jnp.sum((jax.nn.softmax(scores).astype("bfloat16") @ v).astype("float32") ** 2)


@pytest.mark.parametrize("is_causal", [True, False])
def test_a_sum_under_a_mask_is_kept_and_another_one_recomputed(is_causal: bool):
    """On an H100 two of three reductions count as 6 bytes an element under a mask, for 2 that are
    read; the sum, which is kept, as none, for 2 that its own kernel reads."""
    gradient = jax.value_and_grad(functools.partial(attention, is_causal=is_causal), (0, 1, 2))
    heads, queries = 64, 2048
    given = [jax.ShapeDtypeStruct((heads, queries, 128), "bfloat16")] * 3
    plan = kiwi.plan(gradient, *given, mesh_shape=(1,), profile="h100-sxm", verify=None)
    found = reduced_for_readers(plan.execution.units)
    elements = heads * queries**2
    assert {each.masked_elements for each in found.values()} == {elements * is_causal}
    own = {each.unit: each for each in plan.decisions if each.unit in found}
    ((index, _),) = ((k, each) for k, each in found.items() if each.is_summed_once)
    assert (own[index].recompute_at is None) == is_causal
    spent = sum(each.costs.seconds["compute"] for each in own.values())
    moved = (2 * (6 - 2) + 0) * elements if is_causal else 0
    hardware = plan.mesh.hardware
    moved_seconds = moved / hardware.sustained_memory_bytes_per_second
    launches = spent - 3 * hardware.kernel_launch_seconds - moved_seconds
    assert 0 <= launches <= 2 * hardware.kernel_launch_seconds


@pytest.mark.parametrize(("function", "times"), [(normalised, [2]), (jnp.sin, [])])
def test_the_gradient_of_a_scale_reads_normalised_rows_from_memory(function, times: list[int]):
    def scaled(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = function(x) * w
        return jnp.sum(y**3), y

    weights = jax.ShapeDtypeStruct((128,), "float32")
    gradient = jax.value_and_grad(scaled, has_aux=True)
    units = kiwi.jit(gradient, mesh_shape=(1,)).traced(weights, ROWS).units
    kernels = kernels_of(units).kernels
    found = [moved.bytes for kernel in kernels for moved in kernel.moved_beside]
    assert found == [n * 4 * 64 * 128 for n in times]


@pytest.mark.parametrize(("profile", "ratio"), [("h100-sxm", 0.5), ("v100-sxm2", 1.0)])
def test_what_is_reduced_for_readers_takes_a_launch(profile, ratio):
    """Rows are read twice, by the softmax's maximum and its sum, and once more and written, by what
    divides: on an H100 that reads them once."""
    array = jax.ShapeDtypeStruct((2**14, 2**10), "float32")
    options = {"mesh_shape": (1,), "profile": profile, "verify": None}
    plan = kiwi.plan(lambda x: jax.nn.softmax(x), array, **options)
    hardware = plan.mesh.hardware
    pass_seconds = 2**26 / hardware.sustained_memory_bytes_per_second
    seconds = plan.estimate.step_seconds - 3 * hardware.kernel_launch_seconds
    assert seconds == pytest.approx(ratio * 4 * pass_seconds, rel=0.01)
