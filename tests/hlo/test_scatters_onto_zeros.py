"""Scatters onto the array that they are added to, in place of scatters onto zeros."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kiwi
from kiwi.hlo.tracing import trace

LOGITS, LABELS = jax.ShapeDtypeStruct((4, 6, 8), "bfloat16"), jax.ShapeDtypeStruct((4, 6), "int32")


X, ROWS = jnp.ones((3, 8)), jnp.zeros(3, int)


def cross_entropy(logits, labels):
    logits = logits.astype(jnp.float32)
    own = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - own).mean()


def gradient(logits, labels):
    return [jax.grad(cross_entropy)(logits, labels)]


def producer(program, value):
    return program.equations[program.values[value].producer]


def test_a_label_is_added_to_the_probabilities():
    program = trace(gradient, (LOGITS, LABELS))
    (scatter,) = [e for e in program.equations if e.name == "scatter-add"]
    assert producer(program, scatter.inputs[0]).name == "mul"
    sums = [e for e in program.equations if e.name == "add_any"]
    assert LOGITS.shape not in {program.values[e.outputs[0]].shape for e in sums}
    shapes = [v.aval.shape for v in scatter.jaxpr_eqn.invars]
    assert shapes == [program.values[i].shape for i in scatter.inputs]
    as_traced = trace(gradient, (LOGITS, LABELS), as_traced=["scatters onto zeros"])
    (scatter,) = [e for e in as_traced.equations if e.name == "scatter-add"]
    assert producer(as_traced, scatter.inputs[0]).filled_with == 0


def test_gradients_are_the_same():
    keys = jax.random.split(jax.random.key(0))
    arrays = jax.random.normal(keys[0], LOGITS.shape), jax.random.randint(keys[1], (4, 6), 0, 8)
    program = trace(gradient, arrays)
    values = dict(zip(program.arguments, arrays, strict=True))
    for each in program.equations:
        values.update(zip(each.outputs, each.apply(values.__getitem__), strict=True))
    np.testing.assert_allclose(values[program.results[0]], *gradient(*arrays), rtol=1e-6)


def test_xla_makes_the_same_of_it():
    lowered = jax.jit(gradient).lower(LOGITS, LABELS)
    text = lowered.compile(compiler_options={"xla_cpu_use_fusion_emitters": True}).as_text()
    (onto,) = re.findall(r"fusion\(%(\S+?),.*calls=%wrapped_scatter", text)
    assert "multiply" in onto


def added(table, rows):
    """Returns the gradient of a table whose rows are read by number, added to another gradient."""
    return [jax.grad(lambda t: (t[rows] ** 2).sum() + (t**2).sum())(table)]


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (added, (X, ROWS)),  # more than one element
        (lambda x, i: [zeros_with(x, i) + x, zeros_with(x, i)], (X, ROWS)),
        (lambda x, i: [kiwi.hint(zeros_with(x, i), keep=True) + x], (X, ROWS)),
    ],
    ids=["rows", "another reader", "the user's"],
)
def test_others_stay_as_they_are(function, arguments):
    program = trace(function, arguments)
    (scatter,) = [e for e in program.equations if e.name == "scatter-add"]
    assert producer(program, scatter.inputs[0]).filled_with == 0


def zeros_with(x, labels):
    """Returns the gradient of `take_along_axis`."""
    return jax.grad(lambda x: jnp.take_along_axis(x, labels[:, None], 1).sum())(x)
