"""Hand-written shardings fit the state, divide it evenly, and compute the same as one device."""

import math
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from examples import convnet, encoder, encoder_decoder, gpt, lstm, mlp, moe, state_space, unet, vit
from examples._common import Specs, TrainState

AXIS_SIZES = {"x": 2, "y": 4}
BOTH = ("x", "y")


def megatron(state: TrainState) -> Specs:
    return gpt.megatron_specs(state, "x", "y")


def data_parallel(state: TrainState) -> Specs:
    return gpt.data_parallel_specs(state, BOTH)


def fsdp(state: TrainState) -> Specs:
    return gpt.fsdp_specs(state, BOTH, math.prod(AXIS_SIZES.values()))


TRANSFORMERS = [
    pytest.param(module, name, id=name if "13b" in name else f"{module.__name__}-{name}")
    for module in (gpt, encoder)
    for name in module.SIZES
]
ALL = [
    *TRANSFORMERS,
    *(pytest.param(mlp, name, id=f"mlp-{name}") for name in mlp.SIZES),
    *(pytest.param(convnet, name, id=f"convnet-{name}") for name in convnet.SIZES),
    *(
        pytest.param(module, name, id=f"{module.__name__}-{name}")
        for module in (vit, encoder_decoder, moe, state_space, lstm, unet)
        for name in module.SIZES
    ),
]
EVERY_MODULE = [convnet, encoder, encoder_decoder, gpt, lstm, mlp, moe, state_space, unet, vit]


def is_spec(leaf: object) -> bool:
    return isinstance(leaf, PartitionSpec)


def shards_of(array: Any, spec: PartitionSpec) -> int:
    """Returns the number of distinct shards. Asserts that `spec` divides the array evenly."""
    assert len(spec) <= len(array.shape)
    total = 1
    for size, entry in zip(array.shape, spec, strict=False):
        names = entry if isinstance(entry, tuple) else () if entry is None else (entry,)
        parts = math.prod(AXIS_SIZES[name] for name in names)
        assert size % parts == 0, f"{spec} does not divide {array.shape}"
        total *= parts
    return total


def least_bytes_per_device(state: TrainState, specs: Specs) -> int:
    shards = jax.tree.map(lambda spec, x: shards_of(x, spec), specs.state, state, is_leaf=is_spec)
    sizes = jax.tree.map(lambda x, n: x.size * x.dtype.itemsize // n, state, shards)
    return sum(jax.tree.leaves(sizes))


@pytest.mark.parametrize("specs_of", [data_parallel, fsdp])
@pytest.mark.parametrize(("module", "name"), ALL)
def test_specs_fit_and_divide(module: ModuleType, name: str, specs_of: Callable):
    config = module.SIZES[name]
    state, batch = module.abstract_state(config), module.abstract_batch(config)
    specs = specs_of(state)
    assert jax.tree.structure(specs.state, is_leaf=is_spec) == jax.tree.structure(state)
    jax.tree.map(lambda spec, x: shards_of(x, spec), specs.state, state, is_leaf=is_spec)
    assert all(shards_of(array, specs.batch) == 8 for array in batch.values())


@pytest.mark.parametrize(("module", "name"), TRANSFORMERS)
def test_megatron_fits_divides_and_splits_every_matrix(module: ModuleType, name: str):
    config = module.SIZES[name]
    state, batch = module.abstract_state(config), module.abstract_batch(config)
    specs = megatron(state)
    assert jax.tree.structure(specs.state, is_leaf=is_spec) == jax.tree.structure(state)
    shards = jax.tree.map(lambda spec, x: shards_of(x, spec), specs.state, state, is_leaf=is_spec)
    for block in shards.params["blocks"]:
        kernels = [block["attention"][key]["kernel"] for key in ("query", "key", "value", "output")]
        assert [*kernels, block["mlp"]["up"]["kernel"], block["mlp"]["down"]["kernel"]] == [4] * 6
    adam = shards.opt_state[0]
    assert adam.mu == adam.nu == shards.params
    assert all(shards_of(array, specs.batch) == 2 for array in batch.values())


@pytest.mark.parametrize("module", EVERY_MODULE, ids=lambda module: module.__name__)
def test_tensor_parallelism_mixes_with_fully_sharded_data(module: ModuleType):
    config = module.SIZES["tiny"]
    state = module.abstract_state(config)
    parallel = module.megatron_specs(state, "x", "y")
    mixed = module.mixed_specs(state, parallel, "x", AXIS_SIZES["x"])
    whole = data_parallel(state)
    assert jax.tree.structure(mixed.state, is_leaf=is_spec) == jax.tree.structure(state)
    sizes = [least_bytes_per_device(state, specs) for specs in (whole, parallel, mixed)]
    assert sizes[0] > sizes[1] > sizes[2]
    # Everything large enough is split over all eight devices.
    assert sizes[2] < sizes[0] / 4
    alone = module.megatron_specs(state, None, "y")
    assert alone.batch == PartitionSpec() and alone.state == parallel.state


def test_fsdp_divides_the_state_of_the_papers_model_by_eight():
    state = gpt.abstract_state(gpt.SIZES["gpt-13b-4l"])
    whole = least_bytes_per_device(state, data_parallel(state))
    assert least_bytes_per_device(state, fsdp(state)) == pytest.approx(whole / 8, rel=1e-6)
    assert least_bytes_per_device(state, megatron(state)) == pytest.approx(whole / 4, rel=1e-3)


def test_fsdp_takes_the_largest_dimension_that_divides():
    shapes = [(8, 32, 16), (9, 24), (16, 16), (7, 9), ()]
    params = {str(shape): np.zeros(shape, np.float32) for shape in shapes}
    state = TrainState(params, (), jax.numpy.zeros((), "int32"))
    specs = fsdp(state).state.params
    assert [specs[str(shape)] for shape in shapes] == [
        PartitionSpec(None, BOTH),
        PartitionSpec(None, BOTH),
        PartitionSpec(BOTH),
        PartitionSpec(),
        PartitionSpec(),
    ]


@pytest.mark.parametrize(
    ("module", "config", "specs_of"),
    [
        pytest.param(gpt, replace(gpt.SIZES["tiny"], layers=1), megatron, id="gpt-megatron"),
        pytest.param(mlp, mlp.SIZES["tiny"], fsdp, id="mlp-fsdp"),
        pytest.param(convnet, convnet.SIZES["tiny"], data_parallel, id="convnet-data-parallel"),
    ],
)
def test_sharded_step_agrees_with_one_device(
    module: ModuleType, config, specs_of: Callable, make_mesh
):
    state, batch = module.make_state(config), module.make_batch(config)
    step = module.make_train_step(config)
    shardings = gpt.named_shardings(make_mesh(2, 4), specs_of(state))
    sharded_step = jax.jit(step, in_shardings=shardings, out_shardings=(shardings[0], None))
    plain_state, plain_metrics = jax.jit(step)(state, batch)
    new_state, metrics = sharded_step(state, batch)
    np.testing.assert_allclose(metrics["loss"], plain_metrics["loss"], rtol=1e-5)
    for moment, plain_moment in zip(
        jax.tree.leaves(new_state.opt_state), jax.tree.leaves(plain_state.opt_state), strict=True
    ):
        np.testing.assert_allclose(moment, plain_moment, rtol=1e-4, atol=1e-6)
