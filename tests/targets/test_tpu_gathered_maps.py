"""The operands of XLA:TPU's gathers have buffers of their own: figures, and a compiled program."""

import jax
import jax.numpy as jnp
import pytest

from tests.xla.tpu.test_buffers import array, needs_compiler, planned

ROWS, CLASSES = 8192, 4096


def loss(w: jax.Array, x: jax.Array, chosen: jax.Array) -> jax.Array:
    """Logits in bfloat16, the loss in float32."""
    logits = (x @ w).astype(jnp.float32)
    own = jnp.take_along_axis(logits, chosen[:, None], -1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - own)


def arguments() -> tuple[jax.ShapeDtypeStruct, ...]:
    w, x = array(512, CLASSES), array(ROWS, 512)
    narrow = [jax.ShapeDtypeStruct(a.shape, "bfloat16") for a in (w, x)]
    return (*narrow, jax.ShapeDtypeStruct((ROWS,), "int32"))


@needs_compiler
def test_logits_are_held_in_float32_while_the_chosen_ones_are_taken():
    found = planned(jax.value_and_grad(loss), *arguments())
    kernels = found.execution.kernels.kernels
    sizes = [kernel.workspace.buffers({}, (), 0) for kernel in kernels]
    assert [size for own in sizes for size in own] == [ROWS * CLASSES * 4]
    assert found.compiled is not None
    assert found.estimate.peak_bytes == pytest.approx(found.compiled.peak_bytes, rel=0.05)


def test_what_is_no_map_is_gathered_as_it_is():
    found = planned(
        lambda table, tokens: table[tokens].sum(),
        array(CLASSES, 128),
        jax.ShapeDtypeStruct((ROWS,), "int32"),
        verify=None,
    )
    kernels = found.execution.kernels.kernels
    assert not any(kernel.workspace.buffers({}, (), 0) for kernel in kernels)
