"""The steps that examples offer to `kiwi.search`."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples import accumulation, gpt_13b_4l, llama

MAKERS = {
    "accumulation": (accumulation.make_step, {"microbatches": 4}),
    "llama": (functools.partial(llama.make_step, size="tiny"), {"microbatches": 4}),
    "llama, pipelined": (
        functools.partial(llama.make_step, size="tiny"),
        {"microbatches": 4, "stages": 2},
    ),
    "gpt": (gpt_13b_4l.make_step, {}),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_step_of_any_configuration_keeps_the_types_of_its_state(name):
    make_step, more = MAKERS[name]
    step, (state, batch) = make_step(16, **more)
    found, _ = jax.eval_shape(step, state, batch)
    types = lambda tree: [(a.shape, a.dtype) for a in jax.tree.leaves(tree)]  # noqa: E731
    assert types(found) == types(state)
    assert jax.tree.leaves(batch)[0].shape[0] in (16, 4)


def test_parts_that_are_not_equal_are_no_step():
    for make_step in (accumulation.make_step, functools.partial(llama.make_step, size="tiny")):
        with pytest.raises(ValueError):
            make_step(16, microbatches=3)


def test_a_llama_with_layers_one_by_one_is_the_scanned_one():
    scanned = replace(llama.SIZES["tiny"], batch=2)
    keys = iter(jax.random.split(jax.random.key(0), 100))
    draw = lambda a: 0.1 * jax.random.normal(next(keys), a.shape, a.dtype)  # noqa: E731
    state = jax.tree.map(draw, llama.abstract_state(scanned)["params"])
    listed = {
        **state,
        "layers": [jax.tree.map(lambda a, k=k: a[k], state["layers"]) for k in range(2)],
    }
    losses = []
    for params, config in ((state, scanned), (listed, replace(scanned, scanned=False))):
        zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, "float32"), params)
        found = {"params": params, "m": zeros, "v": zeros}
        assert jax.tree.structure(found) == jax.tree.structure(llama.abstract_state(config))
        tokens = jnp.arange(64).reshape(2, 32) % 256
        losses.append(jax.jit(llama.make_train_step(config))(found, tokens)[1])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
