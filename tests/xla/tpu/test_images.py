"""The order of images' dimensions, and what convolutions compute: figures, and compiled
programs."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from benchmarks.fidelity.models import MODELS
from kiwi.hlo.fusion import materialised
from kiwi.mesh.tiles import tiled_elements
from kiwi.targets.rules.tpu.tpu_images import minor_dimensions
from tests.helpers.planning import fusion_of, graph_of
from tests.xla.tpu.test_buffers import array, needs_compiler, planned


def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)


def convolved(kernels: list[jax.Array], x: jax.Array) -> jax.Array:
    for kernel in kernels:
        x = jnp.sin(convolve(x, kernel))
    return jnp.mean(x)


def saturated(kernels: list[jax.Array], x: jax.Array) -> jax.Array:
    for kernel in kernels:
        x = jnp.tanh(convolve(x, kernel))
    return jnp.mean(x)


def test_batch_and_features_are_cut_into_tiles():
    assert tiled_elements((4, 128, 128, 64)) == 4 * 128 * 128 * 64
    assert tiled_elements((4, 128, 128, 64), (0, 3)) == 4 * 128 * 128 * 128
    assert tiled_elements((256, 8, 8, 3), (0, 3)) == 256 * 8 * 8 * 4


@needs_compiler
def test_images_between_convolutions_fill_tiles_of_batch_and_features():
    kernels = [array(3, 3, 64, 64) for _ in range(4)]
    found = planned(jax.grad(convolved), kernels, array(4, 128, 128, 64))
    assert found.compiled is not None
    units = found.execution.units
    minor = minor_dimensions(units.graph)
    images = [v for v in units.producer if units.graph.program.values[v].shape[:1] == (4,)]
    assert images and all(set(minor[value]) == {0, 3} for value in images)
    assert found.estimate.peak_bytes == pytest.approx(found.compiled.peak_bytes, rel=0.08)


def normalised(x: jax.Array) -> jax.Array:
    centred = x - x.mean((0, 1, 2))
    return centred * lax.rsqrt(jnp.square(centred).mean((0, 1, 2)) + 1e-5)


def residual(is_pooled: bool, kernels: list[jax.Array], x: jax.Array) -> jax.Array:
    for kernel in kernels:
        x = jax.nn.relu(normalised(convolve(x, kernel)))
        x = jax.nn.relu(x + normalised(convolve(x, kernel)))
        if is_pooled:
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return jnp.mean(x)


@needs_compiler
@pytest.mark.parametrize(("is_pooled", "tolerance"), [(False, 0.08), (True, 0.15)])
def test_of_a_residual_network_the_results_of_convolutions_and_sums_are_held(is_pooled, tolerance):
    """Normalisations and activations are computed in the convolutions that read them, the gradients
    of activations behind those that compute them. A sum whose maximum pooling reads is not held."""
    kernels = [array(3, 3, 128, 128) for _ in range(2)]
    step = jax.grad(partial(residual, is_pooled))
    found = planned(step, kernels, array(128, 32, 32, 128))
    assert found.compiled is not None
    assert found.estimate.peak_bytes == pytest.approx(found.compiled.peak_bytes, rel=tolerance)
    assert found.estimate.step_seconds == pytest.approx(found.compiled.step_seconds, rel=0.2)


@needs_compiler
@pytest.mark.slow
def test_targets_that_maps_read_are_not_copied():
    """What convolutions read is, to tiles of batch and features: here to 20 times its bytes."""
    module, config = MODELS["unet"].module, MODELS["unet"].config
    arguments = module.abstract_state(config), module.abstract_batch(config)
    options = {"mesh_shape": (2, 4), "donate_argnums": 0}
    found = planned(module.make_train_step(config), *arguments, **options)
    assert found.compiled is not None
    images = [b.bytes for b in found.estimate.buffers if b.kind == "argument"][-2:]
    assert images[0] > 20 * images[1]
    assert found.estimate.peak_bytes == pytest.approx(found.compiled.peak_bytes, rel=0.12)


@pytest.mark.parametrize(("fused", "kept"), [(fusion_of("h100-sxm"), 3), (fusion_of("v5e"), 0)])
def test_convolutions_compute_gradients_that_they_alone_read(fused, kept):
    """Those of three normalisations, sums of two images: for the gradients of kernel and image."""
    module, config = MODELS["convnet"].module, MODELS["convnet"].config
    arguments = module.abstract_state(config), module.abstract_batch(config)
    graph = graph_of(module.make_train_step(config), *arguments)
    program, found = graph.program, materialised(graph, fused)
    sums = [e for e in program.equations if e.name == "add_any" and found[e.index]]
    images = [e for e in sums if len(program.values[e.outputs[0]].shape) == 4]
    assert len(images) == kept


@needs_compiler
def test_images_take_the_seconds_of_tiles_that_are_filled_up():
    """Of 64 features half of a tile is empty."""
    found = planned(jax.grad(saturated), [array(3, 3, 64, 64)] * 3, array(4, 128, 128, 64))
    assert found.compiled is not None and found.compiled.time is not None
    compiled = found.compiled.time.compute_seconds
    assert found.estimate.compute_seconds == pytest.approx(compiled, rel=0.1)
