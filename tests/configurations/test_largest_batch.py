"""The largest batch: its compiled program fits the budget, and one sample more is refused."""

import jax
import jax.numpy as jnp
import pytest

import kiwi
from kiwi import errors

WIDTH = 32


def make_step(batch_size):
    """One layer, whose memory consists mostly of activations."""

    def train_step(w, x):
        def loss(w):
            return jnp.mean(jnp.sin(x @ w) ** 2)

        return w - 0.1 * jax.grad(loss)(w)

    array = jax.ShapeDtypeStruct
    return train_step, (array((WIDTH, WIDTH), "float32"), array((batch_size, WIDTH), "float32"))


OPTIONS = {"mesh_shape": (2,), "profile": "cpu", "donate_argnums": 0}


@pytest.fixture(scope="module")
def found():
    return kiwi.largest_batch(make_step, memory_budget=64 * 1024, **OPTIONS)


def test_the_compiled_program_fits_and_one_more_sample_is_refused(found):
    assert found.plan.compiled.peak_bytes <= 64 * 1024
    assert found.next_batch == found.batch_size + 1
    assert found.proof in ("bound", "compiler")
    tried = dict(found.tried)
    assert tried[found.batch_size] and not tried[found.batch_size + 1]


def test_no_batch_beyond_it_fits(found):
    for batch in (found.batch_size + 1, found.batch_size + 2, found.batch_size + 4):
        function, args = make_step(batch)
        with pytest.raises(errors.InfeasibleError):
            kiwi.plan(function, *args, memory_budget=64 * 1024, effort="quick", **OPTIONS)


def test_batches_may_be_multiples():
    options = {**OPTIONS, "verify": None}
    one = kiwi.largest_batch(make_step, memory_budget=64 * 1024, **options)
    several = kiwi.largest_batch(make_step, memory_budget=64 * 1024, multiple_of=8, **options)
    assert several.batch_size == one.batch_size // 8 * 8
    assert several.next_batch == several.batch_size + 8


def test_a_budget_below_the_parameters_is_refused():
    with pytest.raises(errors.InfeasibleError, match="Not even a batch of 1 fits"):
        kiwi.largest_batch(make_step, memory_budget=1024, verify=None, **OPTIONS)


def test_a_step_whose_memory_does_not_grow_is_refused(monkeypatch):
    monkeypatch.setattr("kiwi.configurations.largest_batch.MOST_BATCH", 2**6)
    with pytest.raises(errors.InvalidArgumentError, match="so does every other one"):
        kiwi.largest_batch(make_step, memory_budget="1GiB", verify=None, **OPTIONS)


def test_a_step_without_a_batch_is_refused():
    with pytest.raises(errors.InvalidArgumentError, match="no parameter batch_size"):
        kiwi.largest_batch(lambda stages=1: None, **OPTIONS)
