"""Forward, backward and update, case by case."""

import jax
import jax.numpy as jnp

from examples import gpt, mlp
from kiwi.hlo.graph import Phase
from kiwi.hlo.phases import phases
from tests.helpers.planning import array, step_graph, trace_flat

W, X = array(8, 8), array(4, 8)


def loss(w, x):
    return jnp.tanh(x @ w).sum()


def by_name(function, *args):
    """Returns the phases of the equations of each primitive."""
    program = trace_flat(function, *args)
    found = {}
    for equation, phase in zip(program.equations, phases(program), strict=True):
        found.setdefault(equation.name, []).append(phase)
    return found


def test_without_a_gradient_all_is_forward():
    assert set(phases(trace_flat(lambda w, x: loss(w, x) * 2, W, X))) == {Phase.FORWARD}


def test_a_gradient_splits_forward_and_backward():
    found = by_name(jax.grad(loss), W, X)
    assert found["tanh"] == [Phase.FORWARD]
    assert sorted(p.value for p in found["dot_general"]) == ["backward", "forward"]


def test_what_reads_a_gradient_is_update():
    found = by_name(lambda w, x: w - 0.1 * jnp.sin(jax.grad(loss)(w, x)), W, X)
    assert found["sin"] == found["sub"][-1:] == [Phase.UPDATE]


def test_what_a_forward_equation_reads_is_forward_too():
    found = by_name(lambda w, x: jax.grad(loss)(w, jnp.exp(x)), W, X)
    assert found["exp"] == [Phase.FORWARD]


def test_a_moment_decayed_before_the_gradient_is_added_is_update():
    def step(w, x, m):
        decayed = jnp.cos(m)
        return decayed + jax.grad(loss)(w, x)

    assert by_name(step, W, X, W)["cos"] == [Phase.UPDATE]


def test_the_transpose_primitive_alone_is_not_backward():
    assert set(phases(trace_flat(lambda x: jnp.transpose(x) + 1, X))) == {Phase.FORWARD}


def test_matmuls_of_a_training_step_are_one_third_forward():
    graph = step_graph(mlp, mlp.SIZES["mlp-8l"])
    names = [equation.name for equation in graph.program.equations]
    dots = [i.phase for i in graph.equations if names[i.index] == "dot_general"]
    # 8 layers of 2; the gradient to the input of the first layer is not needed.
    assert dots.count(Phase.FORWARD) == 16 and dots.count(Phase.BACKWARD) == 31
    assert len(dots) == 47


def test_an_optimizer_is_update():
    graph = step_graph(gpt, gpt.SIZES["tiny"])
    square_roots = [
        info.phase for info in graph.equations if graph.program.equations[info.index].name == "sqrt"
    ]
    assert square_roots and set(square_roots) == {Phase.UPDATE}
