"""Tracing: inlined, merged and dropped equations, and programs that compute the same as the
function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples import convnet, encoder, gpt, mlp
from kiwi.emit.as_written import evaluate_as_written
from kiwi.hlo.lowering import lower
from kiwi.hlo.program import Literal
from kiwi.hlo.tracing import INLINED_CALLS
from tests.helpers.planning import array, flat, primitives, random_arrays, trace_flat

X = array(4, 8)
EXAMPLES = [gpt, encoder, mlp, convnet]


def values_of(program, args):
    inputs = zip(program.arguments, args, strict=True)
    env = evaluate_as_written(lower(program), {**dict(inputs), **program.constants})
    return [r.value if isinstance(r, Literal) else env[r] for r in program.results]


def check_equal(function, *shapes):
    """Checks that evaluating the program gives the function's results. Returns the program."""
    program = trace_flat(function, *shapes)
    args = random_arrays(shapes)
    # Both op by op: the program's equations are jax's own, so that results are bit-equal.
    for got, wanted in zip(values_of(program, args), flat(function)(*args), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)
    return program


@jax.custom_jvp
def twice(x):
    return 2 * x


twice.defjvp(lambda primals, tangents: (twice(*primals), 2 * tangents[0]))


@jax.custom_vjp
def thrice(x):
    return 3 * x


thrice.defvjp(lambda x: (thrice(x), None), lambda _, g: (3 * g,))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jax.jit(jnp.sin)(x),
        lambda x: jax.jit(lambda y: jax.jit(jnp.cos)(y) + 1)(x),
        lambda x: twice(x),
        lambda x: thrice(x),
        lambda x: jax.grad(lambda y: thrice(y).sum())(x),
        lambda x: jax.checkpoint(jnp.sin)(x),
        lambda x: jax.grad(lambda y: jax.checkpoint(jnp.sin)(y).sum())(x),
        lambda x: jax.nn.relu(x),
    ],
    ids=[
        "jit",
        "nested",
        "custom_jvp",
        "custom_vjp",
        "custom_vjp-grad",
        "remat",
        "remat-grad",
        "relu",
    ],
)
def test_calls_are_inlined(function):
    program = check_equal(function, X)
    assert not set(primitives(program)) & set(INLINED_CALLS)


def test_inlining_keeps_the_scope_of_the_call():
    def function(x):
        with jax.named_scope("outer"):
            return jax.jit(lambda y: jnp.sin(y))(x)

    (equation,) = trace_flat(function, X).equations
    assert "outer" in equation.name_stack
    lowered = jax.jit(lambda x: equation.apply(lambda _: x)).lower(X).as_text(debug_info=True)
    assert "outer" in lowered


def test_equal_equations_are_merged():
    program = check_equal(lambda x: jnp.sin(x) + jnp.sin(x), X)
    assert primitives(program).count("sin") == 1


def test_equations_on_different_literals_are_not_merged():
    program = check_equal(lambda x: (x + 1.0) * (x + 2.0) * (x + 1.0), X)
    assert primitives(program).count("add") == 2


def test_signed_zeros_are_different_literals():
    program = check_equal(lambda x: (jnp.copysign(1.0, x * 0.0), jnp.copysign(1.0, x * -0.0)), X)
    assert primitives(program).count("mul") == 2


def test_effects_are_neither_merged_nor_dropped():
    def function(x):
        for _ in range(2):
            jax.debug.callback(lambda value: None, x)
        return x

    assert primitives(trace_flat(function, X)).count("debug_callback") == 2


def test_unread_equations_are_dropped():
    program = check_equal(lambda x: [jnp.cos(x), jnp.exp(jnp.tanh(x))][0], X)
    assert primitives(program) == ["cos"]
    assert len(program.values) == 2


def test_unread_outputs_of_an_equation_remain_computable():
    program = check_equal(lambda x: jax.lax.top_k(x, 2)[0], X)
    (equation,) = program.equations
    assert equation.name == "top_k" and len(equation.outputs) >= 1


def test_an_unused_argument_keeps_its_place():
    program = check_equal(lambda x, y, z: x + z, X, array(3), X)
    assert len(program.arguments) == 3
    assert program.readers[program.arguments[1]] == ()


def test_one_value_read_twice_by_an_equation_is_one_read():
    (equation,) = check_equal(lambda x: x * x, X).equations
    assert len(equation.inputs) == 2 and len(equation.reads) == 1


def test_captured_arrays_are_constants_once_each():
    table, other = jnp.arange(32.0).reshape(4, 8), jnp.ones((8,))
    program = check_equal(lambda x: jax.jit(lambda y: y + table)(x) * table + other, X)
    assert sorted(a.shape for a in program.constants.values()) == [(4, 8), (8,)]


def test_dropped_captured_arrays_are_no_constants():
    table = jnp.arange(32.0).reshape(4, 8)
    program = check_equal(lambda x: [jnp.sin(x), x + table][0], X)
    assert program.constants == {}


def test_results_may_be_arguments_literals_and_repeated():
    program = check_equal(lambda x: (x, 2.0, x, x + 1), X)
    assert program.results[0] == program.results[2] == program.arguments[0]
    assert isinstance(program.results[1], Literal) and program.results[1].value == 2.0


def remat_loss(w, x):
    layer = jax.checkpoint(lambda w, x: jnp.tanh(x @ w))
    return layer(w, layer(w, x)).sum()


def test_the_users_checkpoints_are_planned_anew():
    merged = check_equal(jax.grad(remat_loss), array(8, 8), X)
    assert primitives(merged).count("tanh") == 2
    assert "optimization_barrier" not in primitives(merged)


def test_the_users_checkpoints_can_be_kept():
    kept = trace_flat(jax.value_and_grad(remat_loss), array(8, 8), X, keep_checkpoints=True)
    assert primitives(kept).count("tanh") == 4
    args = random_arrays([array(8, 8), X])
    got = values_of(kept, args)[1]
    np.testing.assert_allclose(got, jax.grad(remat_loss)(*args), rtol=1e-5)


def test_prng_keys_are_values_of_eight_bytes():
    program = trace_flat(
        lambda key, x: x * jax.random.bernoulli(key, 0.5, x.shape), jax.random.key(0), X
    )
    key = program.values[program.arguments[0]]
    assert key.is_extended and key.size_bytes == 8


def test_source_lines_lead_to_the_users_code():
    (equation,) = trace_flat(lambda x: jnp.sin(x), X).equations
    assert equation.source_line.startswith(__file__)


@pytest.mark.parametrize("module", EXAMPLES, ids=lambda m: m.__name__)
def test_a_training_step_keeps_its_types_and_loses_its_calls(module):
    config = module.SIZES["tiny"]
    args, tree = jax.tree.flatten((module.abstract_state(config), module.abstract_batch(config)))
    step = module.make_train_step(config)
    program = trace_flat(lambda *leaves: step(*jax.tree.unflatten(tree, leaves)), *args)
    assert not set(primitives(program)) & set(INLINED_CALLS)
    expected = jax.tree.leaves(jax.eval_shape(step, *jax.tree.unflatten(tree, args)))
    got = [program.values[r].shape_dtype for r in program.results if isinstance(r, int)]
    assert [(s.shape, s.dtype) for s in got] == [(s.shape, s.dtype) for s in expected]
