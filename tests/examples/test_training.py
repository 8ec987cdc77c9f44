"""Every example trains, has the announced shapes at every size, and recomputes exactly."""

import dataclasses
import functools
import itertools
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr

from examples import convnet, encoder, encoder_decoder, gpt, lstm, mlp, moe, state_space, unet, vit
from examples._common import Remat

TINY = [
    pytest.param(gpt, gpt.SIZES["tiny"], id="gpt"),
    pytest.param(
        gpt,
        gpt.GptConfig(layers=1, width=32, heads=4, batch=4, sequence=16, learning_rate=3e-3),
        id="gpt-without-vocabulary",
    ),
    pytest.param(encoder, encoder.SIZES["tiny"], id="encoder"),
    pytest.param(
        encoder,
        encoder.EncoderConfig(layers=1, width=32, heads=4, batch=4, sequence=16),
        id="encoder-without-vocabulary",
    ),
    pytest.param(mlp, mlp.SIZES["tiny"], id="mlp-adam"),
    pytest.param(mlp, mlp.MlpConfig(layers=2, width=32, batch=16), id="mlp-sgd"),
    pytest.param(convnet, convnet.SIZES["tiny"], id="convnet-max"),
    pytest.param(convnet, convnet.SIZES["tiny-average"], id="convnet-average"),
    pytest.param(vit, vit.SIZES["tiny"], id="vit"),
    pytest.param(encoder_decoder, encoder_decoder.SIZES["tiny"], id="encoder-decoder"),
    pytest.param(
        encoder_decoder,
        encoder_decoder.EncoderDecoderConfig(layers=1, width=32, heads=4, batch=4, sequence=16),
        id="encoder-decoder-without-vocabulary",
    ),
    pytest.param(moe, moe.SIZES["tiny"], id="moe"),
    pytest.param(state_space, state_space.SIZES["tiny"], id="state-space"),
    pytest.param(lstm, lstm.SIZES["tiny"], id="lstm"),
    pytest.param(unet, unet.SIZES["tiny"], id="unet"),
]
ONE_BLOCK = [
    pytest.param(gpt, dataclasses.replace(gpt.SIZES["tiny"], layers=1), id="gpt"),
    pytest.param(encoder, dataclasses.replace(encoder.SIZES["tiny"], layers=1), id="encoder"),
    pytest.param(mlp, dataclasses.replace(mlp.SIZES["tiny"], layers=1), id="mlp"),
    pytest.param(convnet, dataclasses.replace(convnet.SIZES["tiny"], stages=(8,)), id="convnet"),
    pytest.param(vit, dataclasses.replace(vit.SIZES["tiny"], layers=1), id="vit"),
    pytest.param(encoder_decoder, encoder_decoder.SIZES["tiny"], id="encoder-decoder"),
    pytest.param(moe, moe.SIZES["tiny"], id="moe"),
    pytest.param(
        state_space, dataclasses.replace(state_space.SIZES["tiny"], layers=1), id="state-space"
    ),
    pytest.param(lstm, dataclasses.replace(lstm.SIZES["tiny"], layers=1), id="lstm"),
    pytest.param(unet, dataclasses.replace(unet.SIZES["tiny"], stages=(8, 16)), id="unet"),
]
# What a matrix unit does in a block, and what not.
OPERATIONS = {
    convnet: ("conv_general_dilated", "rsqrt"),
    unet: ("conv_general_dilated", "logistic"),
    state_space: ("dot_general", "rsqrt"),
}
ALL_SIZES = [
    pytest.param(module, config, id=f"{module.__name__}-{name}")
    for module in (gpt, encoder, mlp, convnet, vit, encoder_decoder, moe, state_space, lstm, unet)
    for name, config in module.SIZES.items()
]


def avals(tree: object) -> object:
    return jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree)


def bytes_of(tree: object) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def count(jaxpr: Jaxpr, name: str) -> int:
    """Returns how often the primitive `name` is applied in `jaxpr`, with calls inlined."""
    inner = [p for eqn in jaxpr.eqns for p in eqn.params.values()]
    inner = [p.jaxpr if isinstance(p, ClosedJaxpr) else p for p in inner]
    here = sum(eqn.primitive.name == name for eqn in jaxpr.eqns)
    return here + sum(count(p, name) for p in inner if isinstance(p, Jaxpr))


@functools.cache
def jitted_step(module: Any, config: Any, remat: Remat) -> Any:
    return jax.jit(module.make_train_step(config, remat=remat))


@functools.cache
def run(module: Any, config: Any, remat: Remat, steps: int) -> tuple[Any, list[float]]:
    """State and losses after some steps."""
    step = jitted_step(module, config, remat)
    state, batch = module.make_state(config, seed=1), module.make_batch(config, seed=2)
    losses = []
    for _ in range(steps):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    return state, losses


@pytest.mark.parametrize(("module", "config"), TINY)
def test_loss_decreases(module: ModuleType, config):
    state, losses = run(module, config, None, 8)
    assert all(after < before for before, after in itertools.pairwise(losses)), losses
    assert losses[-1] < 0.97 * losses[0]
    assert state.step == 8


@pytest.mark.parametrize(
    ("module", "config", "remat"),
    [
        pytest.param(*case.values, remat, id=f"{case.id}-{remat}")
        for case in ONE_BLOCK
        for remat in ("full", "dots", "dots_no_batch")
        # The policies are jax's. Only matmuls in batches tell the latter two apart.
        if remat == "full" or case.values[0] in (gpt, moe)
    ],
)
def test_remat_computes_the_same(module: ModuleType, config, remat: Remat):
    plain, (plain_loss,) = run(module, config, None, 1)
    state, (loss,) = run(module, config, remat, 1)
    np.testing.assert_allclose(loss, plain_loss, rtol=1e-5)
    # Adam's first update is the sign of the gradient, so that a rounding error in a gradient of
    # nothing moves a parameter by up to twice the learning rate: compare the moments instead.
    for moment, plain_moment in zip(
        jax.tree.leaves(state.opt_state), jax.tree.leaves(plain.opt_state), strict=True
    ):
        np.testing.assert_allclose(moment, plain_moment, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("module", "config"), ONE_BLOCK)
def test_remat_recomputes_what_it_says(module: ModuleType, config):
    args = module.abstract_state(config), module.abstract_batch(config)
    plain, full, dots = (
        jax.make_jaxpr(module.make_train_step(config, remat=remat))(*args).jaxpr
        for remat in (None, "full", "dots")
    )
    heavy, light = OPERATIONS.get(module, ("dot_general", "tanh"))
    assert count(dots, heavy) == count(plain, heavy) < count(full, heavy)
    assert count(dots, light) > count(plain, light)


def test_unknown_remat_is_refused():
    config = mlp.SIZES["tiny"]
    step = mlp.make_train_step(config, remat="half")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="'dots' or 'dots_no_batch', got 'half'"):
        jax.eval_shape(step, mlp.abstract_state(config), mlp.abstract_batch(config))


@pytest.mark.parametrize(("module", "config"), TINY)
def test_abstract_is_concrete_without_memory(module: ModuleType, config):
    assert avals(module.abstract_state(config)) == avals(module.make_state(config))
    assert avals(module.abstract_batch(config)) == avals(module.make_batch(config))


@pytest.mark.parametrize(("module", "config"), ALL_SIZES)
def test_step_keeps_the_shapes_of_its_state(module: ModuleType, config):
    state, batch = module.abstract_state(config), module.abstract_batch(config)
    after, metrics = jax.eval_shape(module.make_train_step(config), state, batch)
    assert avals(after) == avals(state)
    assert metrics["loss"].shape == () and metrics["loss"].dtype == jnp.float32
    assert all(array.shape[0] == config.batch for array in batch.values())


@pytest.mark.parametrize(
    ("module", "name", "layers"),
    [(gpt, "gpt-13b-4l", 4), (encoder, "encoder-13b-4l", 4), (gpt, "gpt-13b-1l", 1)],
)
def test_the_papers_layers_have_their_size(module: ModuleType, name: str, layers: int):
    config = module.SIZES[name]
    params = module.abstract_state(config).params
    width = config.width
    matrices = 12 * width**2
    biases = 4 * width + 4 * width + width + 2 * 2 * width  # attention, up, down, two norms
    assert (width, config.heads, config.batch) == (5120, 40, 16)
    assert bytes_of(params["blocks"]) == 4 * layers * (matrices + biases)


def test_gpt_125m_has_its_size():
    parameters = bytes_of(gpt.abstract_state(gpt.SIZES["gpt-125m"]).params) / 4
    assert 124e6 < parameters < 126e6


def test_activations_dominate_the_memory_of_mlp_8l():
    config = mlp.SIZES["mlp-8l"]
    state, batch = mlp.abstract_state(config), mlp.abstract_batch(config)
    compiled = jax.jit(mlp.make_train_step(config), donate_argnums=0).lower(state, batch).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes > 4 * bytes_of(state)


def influence_on_the_first_output(module: ModuleType, config) -> jax.Array:
    """Returns |d error / d input| by position of the input, for the error of the first output."""
    params, batch = module.make_state(config).params, module.make_batch(config)
    moved = batch["targets"].at[:, 0, 0].add(1.0)

    def error(inputs: jax.Array) -> jax.Array:
        # The two losses differ in one output only.
        losses = [
            module.loss(config, None, params, {"inputs": inputs, "targets": targets})
            for targets in (moved, batch["targets"])
        ]
        return losses[0] - losses[1]

    return jnp.abs(jax.jit(jax.grad(error))(batch["inputs"])).sum((0, 2))


def test_gpt_is_causal_and_the_encoder_is_not():
    size: dict[str, Any] = {"layers": 1, "width": 32, "heads": 4, "batch": 2, "sequence": 8}
    decoder = influence_on_the_first_output(gpt, gpt.GptConfig(**size))
    both_ways = influence_on_the_first_output(encoder, encoder.EncoderConfig(**size))
    assert bool((decoder[1:] < 1e-4 * decoder[0]).all())
    assert bool((both_ways[1:] > 1e-3 * both_ways[0]).all())


@pytest.mark.parametrize("module", [gpt])
def test_bfloat16_activations_keep_float32_parameters(module: ModuleType):
    config = dataclasses.replace(module.SIZES["tiny"], layers=1)
    single, (single_loss,) = run(module, config, None, 1)
    half, (half_loss,) = run(module, dataclasses.replace(config, dtype="bfloat16"), None, 1)
    assert avals(half) == avals(single)
    assert half_loss != single_loss
    np.testing.assert_allclose(half_loss, single_loss, rtol=1e-2)


def test_indivisible_sizes_are_refused():
    with pytest.raises(ValueError, match="width 30 is not divisible by heads 4"):
        gpt.GptConfig(layers=1, width=30, heads=4, batch=1, sequence=1)
    with pytest.raises(ValueError, match="2 stages cannot halve 6 pixels"):
        convnet.ConvnetConfig(stages=(8, 8), image=6, batch=1)
