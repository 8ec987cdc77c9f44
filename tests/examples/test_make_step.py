"""The steps that examples offer to `kiwi.search`."""

import functools

import jax
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
