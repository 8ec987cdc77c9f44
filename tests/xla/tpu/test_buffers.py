"""Sizes of XLA:TPU's buffers: the figures, and the same in compiled programs."""

from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import kiwi
from examples import mlp
from kiwi.xla.tpu.buffers import buffers_of, tiled_elements

needs_compiler = pytest.mark.skipif(
    find_spec("libtpu") is None, reason="the extra aot-tpu is not installed"
)


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32")


def planned(function: Any, *arguments: Any, **options: Any) -> kiwi.Plan:
    given = {"mesh_shape": (1,), "profile": "v5e", "verify": "tpu", **options}
    return kiwi.plan(function, *arguments, **given)


@pytest.mark.parametrize(
    ("shape", "elements"),
    [
        ((1024, 512), 1024 * 512),
        ((16, 64, 1024), 16 * 64 * 1024),
        ((16, 64), 16 * 128),
        ((3, 64), 4 * 128),
        ((32, 64, 64, 64), 2 * 32 * 64**3),
        ((4, 512, 16, 64), 4 * 512 * 16 * 64),  # the dimension of 512 is made minor
        ((100,), 128),
        ((1500,), 2048),
        ((1, 1, 7), 128),
    ],
)
def test_tiles_are_filled_up(shape: tuple[int, ...], elements: int):
    assert tiled_elements(shape) == elements


@needs_compiler
@pytest.mark.parametrize("shape", [(64, 64, 64), (30, 20), (4, 512, 16, 64), (1500,)])
def test_arguments_and_results_have_the_bytes_of_their_tiles(shape: tuple[int, ...]):
    compiled = planned(lambda x: jnp.sin(x), array(*shape)).compiled
    assert compiled is not None
    assert compiled.argument_bytes == compiled.output_bytes == 4 * tiled_elements(shape)


@needs_compiler
@pytest.mark.parametrize("precision", ["default", "highest"])
@pytest.mark.parametrize("budget", [None, "232MiB"])
def test_what_only_matmuls_read_is_stored_narrow(precision: str, budget: str | None):
    """Products of all bits read float32, and all results are stored so."""
    config = mlp.MlpConfig(layers=4, width=1024, batch=16384, optimizer="adam")
    state, batch = mlp.abstract_state(config), mlp.abstract_batch(config)
    step = mlp.make_train_step(config)
    with jax.default_matmul_precision(precision):
        options = {"mesh_shape": (2, 4), "donate_argnums": 0, "memory_budget": budget}
        found = planned(step, state, batch, **options)
    assert found.compiled is not None and found.fits
    predicted = found.estimate.peak_bytes / found.compiled.peak_bytes
    assert predicted == pytest.approx(1, abs=0.07)  # Copies of parameters are not predicted.
    units = found.execution.units
    narrow = [v for v in units.producer if buffers_of(units).is_narrow(v)]
    assert bool(narrow) == (precision == "default")
