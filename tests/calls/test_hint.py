"""`kiwi.hint`: an identity for jax, and a pin for Kiwi."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import kiwi
from kiwi.errors import InvalidArgumentError
from kiwi.hlo.hints import HINT_PRIMITIVE
from kiwi.hlo.tracing import trace
from tests.helpers.planning import array

X = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(4, 3)


def hinted(x):
    return jnp.sin(kiwi.hint(x * 2.0, sharding=P("x"), keep=True, name="doubled")).sum()


def plain(x):
    return jnp.sin(x * 2.0).sum()


def test_it_returns_what_it_is_given_leaf_by_leaf():
    tree = {"a": X, "b": (X + 1.0,)}
    found = kiwi.hint(tree, recompute=True)
    assert jax.tree.structure(found) == jax.tree.structure(tree)
    jax.tree.map(np.testing.assert_array_equal, found, tree)


@pytest.mark.parametrize(
    "transform",
    [
        jax.jit,
        jax.grad,
        lambda f: jax.jit(jax.value_and_grad(f)),
        lambda f: jax.vmap(f, in_axes=1),
        lambda f: jax.vmap(jax.grad(f)),
        lambda f: jax.hessian(f),
        lambda f: jax.grad(jax.checkpoint(f)),
        lambda f: lambda x: jax.jvp(f, (x,), (x,)),
        lambda f: lambda x: jax.lax.scan(lambda c, r: (c + f(r), f(r)), 0.0, x),
        lambda f: jax.grad(lambda x: jax.lax.scan(lambda c, r: (c * f(r), None), 1.0, x)[0]),
    ],
)
def test_it_changes_no_number_under_transformations(transform):
    got, expected = transform(hinted)(X), transform(plain)(X)
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_it_leaves_nothing_in_the_lowered_program():
    step = lambda f: jax.jit(jax.value_and_grad(f)).lower(X).as_text()  # noqa: E731
    assert step(hinted).replace("hinted", "plain") == step(plain)


def test_the_cotangent_is_not_hinted():
    jaxpr = jax.make_jaxpr(jax.grad(hinted))(X)
    assert str(jaxpr).count(HINT_PRIMITIVE) == 1


def test_vmap_leaves_the_new_dimension_open():
    program = trace(
        lambda x: [jax.vmap(lambda r: kiwi.hint(r + 1.0, sharding=P("x")), 1, 1)(x)], [array(4, 3)]
    )
    ((placed,),) = program.hints.values()
    assert placed.hint.sharding == P("x", P.UNCONSTRAINED)


def test_tracing_notes_hints_at_values_and_keeps_no_equation():
    program = trace(lambda x: [hinted(x)], [array(4, 3)])
    assert [e.name for e in program.equations] == ["mul", "sin", "reduce_sum"]
    (placed,) = program.hints[program.equations[0].outputs[0]]
    assert placed.hint.name == "doubled"
    assert "test_hint.py" in placed.label


def test_hints_in_the_body_of_a_scan_stand_at_its_values():
    def f(xs):
        return jax.lax.scan(lambda c, x: (c + kiwi.hint(x * c, keep=True), None), 1.0, xs)[0]

    program = trace(lambda xs: [f(xs)], [array(5)], open_loops=True)
    (value,) = program.hints
    assert program.values[value].shape == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": True, "recompute": True}, "to keep a value and to recompute it"),
        ({"sharding": "x"}, "is no PartitionSpec"),
        ({"sharding": P("x", None, None)}, "has 3 entries, the array has 2 dimensions"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        kiwi.hint(X, **options)
