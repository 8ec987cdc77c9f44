"""Sizes of XLA:TPU's buffers: figures, and compiled programs."""

from importlib.util import find_spec
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import kiwi
from examples import mlp
from kiwi.mesh.tiles import default_order, tiled_elements
from kiwi.xla.compile.worker import begun_elsewhere
from kiwi.xla.compilers import of_platform
from tests.helpers.tpu_code import minor_to_major

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
@pytest.mark.parametrize("shape", [(4, 512, 16, 64), (1500,)])
def test_arguments_and_results_have_the_bytes_of_their_tiles(shape: tuple[int, ...]):
    compiled = planned(lambda x: jnp.sin(x), array(*shape)).compiled
    assert compiled is not None
    assert compiled.argument_bytes == compiled.output_bytes == 4 * tiled_elements(shape)


@needs_compiler
def test_arguments_lie_in_the_default_order():
    """Row-major, or with the dimension as the minor one that wastes least."""
    shapes = [(64, 64, 64), (30, 20), (4, 512, 16, 64), (8, 2048, 16, 16), (8, 16, 128, 256)]
    step = planned(lambda *xs: [x + 1 for x in xs], *(array(*s) for s in shapes), verify=None).step
    found = begun_elsewhere(minor_to_major, step, "tpu")()
    assert found == [list(reversed(default_order(shape))) for shape in shapes]


@needs_compiler
def test_a_perceptron_is_predicted():
    config = mlp.MlpConfig(layers=4, width=1024, batch=16384, optimizer="adam")
    state, batch = mlp.abstract_state(config), mlp.abstract_batch(config)
    step = mlp.make_train_step(config)
    options = {"mesh_shape": (2, 4), "donate_argnums": 0, "memory_budget": "232MiB"}
    found = planned(step, state, batch, **options)
    assert found.compiled is not None and found.fits
    predicted = found.estimate.peak_bytes / found.compiled.peak_bytes
    assert predicted == pytest.approx(1, abs=0.1)  # Copies of parameters are not predicted.


@needs_compiler
@pytest.mark.parametrize("precision", ["default", "highest"])
def test_a_product_that_only_matmuls_read_is_stored_narrow(precision: str):
    step = jax.grad(lambda x, v, w: ((x @ v @ w) ** 2).sum(), argnums=(0, 1, 2))
    with jax.default_matmul_precision(precision):
        found = planned(step, array(8192, 128), array(128, 2048), array(2048, 128))
    assert found.compiled is not None
    predicted = found.estimate.peak_bytes / found.compiled.peak_bytes
    assert predicted == pytest.approx(1, abs=0.1)
    units = found.execution.units
    narrow = found.execution.kernels.storage.stored_itemsize
    assert (units.units[0].outputs[0] in narrow) == (precision == "default")


@needs_compiler
def test_matmuls_compute_maps_that_they_read():
    """The backward pass reads what the forward one holds of two GELUs: their operands alone."""

    def loss(x, v, w):
        return (jax.nn.gelu(jax.nn.gelu(x @ v) @ w) ** 2).sum()

    step = jax.grad(loss, argnums=(0, 1, 2))
    found = planned(step, array(8192, 128), array(128, 2048), array(2048, 128))
    assert found.compiled is not None
    held_bytes = 4 * 8192 * (2048 + 128)
    assert not {"tanh", "mul"} & {d.opcode for d in found.decisions if prod(d.shape) >= 8192 * 128}
    assert found.compiled.temporary_bytes < 1.5 * held_bytes
    assert found.estimate.peak_bytes / found.compiled.peak_bytes == pytest.approx(1, abs=0.05)


@needs_compiler
@pytest.mark.parametrize("precision", ["default", "highest"])
def test_what_is_multiplied_in_bfloat16_is_gathered_so(precision: str):
    """Matrices are cut along the axis that the batch is cut along, too; on other devices they are
    gathered as they are."""
    options = {"in_shardings": (P("x"), P("x"), P("x")), "out_shardings": P("x")}
    with jax.default_matmul_precision(precision):
        found = planned(
            lambda x, v, w: x @ v @ w,
            *(array(8192, 512), array(512, 512), array(512, 512)),
            **{"mesh_shape": (4,), "axis_names": ("x",), **options},
        )
    assert found.compiled is not None
    itemsize = 2 if precision == "default" else 4
    for uses in (found.estimate.collectives, found.compiled.collectives):
        assert uses["all-gather"].bytes == 2 * 512 * 512 * itemsize
    elsewhere = found.step_for(of_platform("cpu")).function
    traced = jax.make_jaxpr(elsewhere)(*found.step.arguments)
    assert "bf16" not in str(traced)
