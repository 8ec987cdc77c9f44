"""Opened scans: their bodies in the program, forwarded residuals, order and uses of their units."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kiwi.emit.as_written import evaluate_as_written
from kiwi.hlo.fusion import materialised
from kiwi.hlo.grouping import build_units
from kiwi.hlo.loops import CARRY, JOIN, LOOP_PRIMITIVES, RESULT, SLICE, STACK, LoopKind
from kiwi.hlo.lowering import lower
from kiwi.hlo.program import Program
from tests.helpers.loops import CHOICES, LOOPS, Loop, branching, layers, repeated
from tests.helpers.planning import array, primitives, trace_flat

ALL = {**LOOPS, **CHOICES}

_DERIVED = {"sin": {"cos"}, "cos": {"sin"}, "tan": set[str]()}
"""For each function, the functions that its derivative computes."""


def program_of(loop: Loop) -> Program:
    leaves, tree = jax.tree.flatten(loop.args)
    return trace_flat(
        lambda *flat: loop.step(*jax.tree.unflatten(tree, flat)), *leaves, open_loops=True
    )


@pytest.mark.parametrize("name", ALL)
def test_every_loop_and_conditional_is_opened(name):
    loop = ALL[name]()
    program = program_of(loop)
    assert len(program.loops) == loop.loops
    assert not {"scan", "while", "cond"} & set(primitives(program))


@pytest.mark.parametrize("name", ALL)
def test_an_opened_program_computes_the_same(name):
    loop = ALL[name]()
    program, leaves = program_of(loop), jax.tree.leaves(loop.args)
    inputs = dict(zip(program.arguments, leaves, strict=True))
    env = evaluate_as_written(lower(program), {**inputs, **program.constants})
    for result, wanted in zip(program.results, jax.tree.leaves(loop.step(*loop.args)), strict=True):
        np.testing.assert_allclose(env[result], wanted, rtol=1e-4, atol=1e-6)


def test_a_scan_stays_whole_unless_it_is_asked_for():
    loop = layers()
    leaves, tree = jax.tree.flatten(loop.args)
    program = trace_flat(lambda *flat: loop.step(*jax.tree.unflatten(tree, flat)), *leaves)
    assert not program.loops
    assert primitives(program).count("scan") == 2


def test_the_backward_body_reads_what_the_forward_body_computed():
    """No residual is stacked: the only stacks are the gradients of both stacked parameters."""
    program = program_of(layers())
    forward, backward = program.loops
    assert (forward.reverse, backward.reverse) == (False, True)
    assert forward.space == backward.space
    assert primitives(program).count(STACK) == 2
    assert primitives(program).count(SLICE) == 2
    crossing = {
        v
        for e in program.equations
        if e.loop == backward.index
        for v in e.reads
        if program.loop_of(v) == forward.index
    }
    assert crossing


def test_what_a_user_recomputes_is_the_same_program():
    """Second computations in the backward body merge with the first ones, all but their order."""
    plain, again = program_of(layers()), program_of(layers(checkpoint=True))
    assert sorted(primitives(plain)) == sorted(primitives(again))


def test_the_backward_branch_reads_what_its_forward_branch_computed():
    """Residuals are no results of the conditional: the only ones are the loss's operand, and the
    gradients of both stacked parameters."""
    program = program_of(branching())
    joined = [e for e in program.equations if e.name == JOIN]
    shapes = sorted(program.values[e.outputs[0]].shape for e in joined)
    assert shapes == [(4, 32, 128), (4, 128, 32), (512, 32)]
    forward, backward = (
        [k for k in program.loops if k.kind is LoopKind.BRANCH and k.parent == switch.index]
        for switch in program.loops
        if switch.kind is LoopKind.SWITCH
    )
    assert [k.space for k in forward] == [k.space for k in backward]


def test_a_branch_counts_for_its_share_and_a_while_for_its_trips():
    branches = [k for k in program_of(branching()).loops if k.kind is LoopKind.BRANCH]
    assert [k.runs for k in branches] == [0.5] * 4
    program = program_of(repeated())
    assert (program.trips(0), program.known_trips(0)) == (4, 1)


def test_conditionals_of_scalars_and_of_platforms_stay_whole():
    def f(x):
        sign = jax.lax.cond(x[0] > 0, lambda s: s + 1, lambda s: s - 1, x[1])
        return [jax.lax.platform_dependent(x * sign, cpu=jnp.sin, default=jnp.cos)]

    program = trace_flat(f, array(4), open_loops=True)
    assert not program.loops and primitives(program).count("cond") == 2


@pytest.mark.parametrize(
    ("platforms", "named"), [(("gpu", "cuda"), "tan"), (("cpu",), "sin"), (("tpu",), "cos")]
)
def test_of_a_choice_between_platforms_the_target_s_branch_is_inlined(platforms, named):
    """With the gradient, whose branches hand residuals on through the same choice."""

    def loss(x):
        chosen = jax.lax.platform_dependent(x, cpu=jnp.sin, cuda=jnp.tan, default=jnp.cos)
        return jnp.sum(chosen**2)

    program = trace_flat(jax.value_and_grad(loss), array(4), platforms=platforms)
    assert named in primitives(program)
    assert not {"sin", "cos", "tan", "cond"} - {named} & set(primitives(program)) - _DERIVED[named]


def test_without_a_branch_for_the_target_the_choice_stays():
    def f(x):
        return [jax.lax.platform_dependent(x, cpu=jnp.sin, tpu=jnp.cos)]

    assert "cond" in primitives(trace_flat(f, array(4), platforms=("cuda",)))


def test_what_a_scan_yields_as_a_literal_is_repeated_outside_of_it():
    def f(x):
        def body(c, x):
            return c + x, (2 * x, 2.5, True, 0.0)

        _, (xs, *constants) = jax.lax.scan(body, 0.0, x)
        return xs, *constants, jnp.sum(constants[0])

    program = trace_flat(f, array(3), open_loops=True)
    assert primitives(program).count(STACK) == 1
    x = np.arange(3, dtype="float32")
    env = evaluate_as_written(lower(program), {program.arguments[0]: x})
    for result, wanted in zip(program.results, jax.tree.leaves(f(x)), strict=True):
        assert isinstance(result, int)
        assert env[result].dtype == wanted.dtype
        np.testing.assert_array_equal(env[result], wanted)


def test_carries_that_start_alike_stay_apart():
    def f(x):
        return jax.lax.scan(lambda c, x: ((c[0] + x, c[1] * x), None), (0.0, 0.0), x)[0]

    program = trace_flat(f, array(4), open_loops=True)
    assert primitives(program).count(CARRY) == 2


def test_constants_leave_the_loop_and_operands_of_it_stay():
    def f(x, w):
        mask = lambda: jnp.tri(4)  # noqa: E731
        return jax.lax.scan(lambda c, _: (c + mask() * jnp.sin(w), None), x, None, length=3)[0]

    program = trace_flat(f, array(4, 4), array(4, 4), open_loops=True)
    inside = {e.name for e in program.equations if e.loop is not None}
    assert "iota" in primitives(program) and "iota" not in inside
    assert "sin" in inside


def test_a_carry_that_never_changes_is_read_from_outside():
    def f(x, w):
        return jax.lax.scan(lambda c, _: ((c[0] @ c[1], c[1]), None), (x, w), None, length=3)[0]

    program = trace_flat(f, array(4, 4), array(4, 4), open_loops=True)
    assert primitives(program).count(CARRY) == 1
    assert program.results[1] == program.arguments[1]


def test_an_effect_keeps_a_scan_whole():
    def f(x):
        def body(c, x):
            jax.debug.print("{x}", x=x)
            return c + x, None

        return jax.lax.scan(body, 0.0, x)[0]

    program = trace_flat(f, array(4), open_loops=True)
    assert not program.loops and "scan" in primitives(program)


@pytest.mark.parametrize("name", LOOPS)
def test_units_of_a_loop_lie_together_and_border_units_stand_alone(name):
    graph = lower(program_of(LOOPS[name]()))
    units = build_units(graph)
    for loop, (start, end) in units.spans.items():
        inside = [loop in graph.program.loops_around(u.loop) for u in units.units]
        assert all(inside[start:end]) and sum(inside) == end - start
    is_root = materialised(graph)
    for equation in graph.program.equations:
        if equation.name in LOOP_PRIMITIVES:
            assert is_root[equation.index]
    for k, unit in enumerate(units.units):
        assert unit.index == k
        for value in unit.reads:
            producer = units.producer.get(value)
            assert producer is None or producer < k


def test_trips_and_uses():
    """Two loops of four: the forward body's values are read late in the backward body."""
    units = build_units(lower(program_of(layers())))
    program = units.graph.program
    forward, backward = units.spans[0], units.spans[1]
    for unit in units.units:
        border = units.border(unit)
        expected = 4 if unit.loop is not None and border != CARRY else 1
        assert units.trips(unit) == expected
    dots = [
        u for u in units.units if u.loop == 0 and units.graph.opcode_of(u.root) == "dot_general"
    ]
    for unit in dots:
        uses = units.uses[unit.index]
        assert any(forward[0] <= u.time < forward[1] or u.is_late for u in uses)
        assert all(u.time < backward[1] for u in uses)
    (result,) = (u for u in units.units if units.border(u) == RESULT)
    assert result.index >= forward[1] and program.loop_of(result.outputs[0]) is None


def test_what_runs_before_a_loop_is_there_when_the_loop_starts():
    """`entry`: seen from outside, anything in the loop is needed before its first unit."""
    units = build_units(lower(program_of(layers())))
    start, end = units.spans[1]
    for time in range(start, end):
        assert units.entry(None, time) == start
        assert units.entry(0, time) == time
