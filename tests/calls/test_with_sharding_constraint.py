"""`with_sharding_constraint` in the function: it constrains the value itself, is followed, and adds
no copy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import kiwi
from tests.helpers.on_cpu import WAITING_ON_CPU
from tests.helpers.planning import array, trace_flat

LAYERS, WIDTH, HIDDEN, BATCH = 3, 256, 1024, 2048
OPEN = PartitionSpec.UNCONSTRAINED


@functools.cache
def mesh(*names: str) -> jax.sharding.Mesh:
    names = names or ("x", "y")
    return jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(2, 4), names)


def constrained(x, *entries, names=()):
    spec = PartitionSpec(*entries)
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh(*names), spec))


def loss(weights, x):
    for up, down in weights:
        hidden = constrained(jnp.tanh(x @ up), "x", "y")
        x = constrained(x + hidden @ down, "x", None)
    return jnp.mean(x**2)


def step(weights, x):
    gradient = jax.grad(loss)(weights, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient)


WEIGHTS = ((array(WIDTH, HIDDEN), array(HIDDEN, WIDTH)),) * LAYERS
X = array(BATCH, WIDTH)


def planned(function, *args, **options):
    options = {"mesh": mesh(), "time_limit_seconds": 10, "profile": WAITING_ON_CPU, **options}
    return kiwi.plan(function, *args, **options)


def layout_of(plan, value):
    return plan.mesh.partition_spec(plan.execution.layouts[value])


def test_a_computed_value_is_constrained_itself_and_so_is_its_cotangent():
    program = trace_flat(jax.grad(loss), WEIGHTS, X)
    names = [e.name for e in program.equations]
    assert "sharding_constraint" not in names
    tangents = [e for v in program.constraints if (e := program.values[v].producer)]
    assert len(program.constraints) == len(tangents) == 4 * LAYERS


def test_an_argument_and_what_is_constrained_otherwise_are_resharded():
    def function(x):
        batch = constrained(x, "x", None)
        y = constrained(jnp.sin(batch), "x", None)
        return constrained(y, None, "y") * 2, y

    program = trace_flat(function, X)
    assert [e.name for e in program.equations].count("sharding_constraint") == 2
    assert len(program.constraints) == 3
    plan = planned(function, X, verify=None)
    lies = [layout_of(plan, v) for v in program.constraints]
    assert sorted(map(str, lies)) == sorted(
        map(str, [PartitionSpec("x", None)] * 2 + [PartitionSpec(None, "y")])
    )


def test_what_names_a_memory_stays_an_equation():
    def function(x):
        on_host = NamedSharding(mesh(), PartitionSpec("x", None), memory_kind="pinned_host")
        return jax.lax.with_sharding_constraint(x * 2, on_host)

    program = trace_flat(function, X)
    assert "sharding_constraint" in [e.name for e in program.equations]
    assert not program.constraints


@pytest.mark.parametrize("planner", ["joint", "xla"])
def test_constraints_take_no_memory_and_are_followed(planner):
    shardings = ((PartitionSpec(None, "y"), PartitionSpec("y", None)),) * LAYERS
    given = (shardings, PartitionSpec("x", None))
    plan = planned(step, WEIGHTS, X, planner=planner, in_shardings=given, donate_argnums=0)
    assert plan.compiled is not None
    predicted, compiled = plan.estimate.peak_bytes, plan.compiled.peak_bytes
    wasted = plan.compiled.memory.fragmentation_bytes
    assert predicted == pytest.approx(compiled - wasted, rel=0.03)
    assert not any("constrains them" in note.text for note in plan.notes)


def test_the_planned_step_computes_the_same():
    rng = np.random.default_rng(0)
    weights, x = jax.tree.map(
        lambda a: jnp.asarray(rng.standard_normal(a.shape), a.dtype) / 16, (WEIGHTS, X)
    )
    wanted = jax.jit(step)(weights, x)
    found = kiwi.jit(step, mesh=mesh(), time_limit_seconds=10)(weights, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), found, wanted)


def test_what_nobody_would_choose_is_followed_all_the_same():
    def function(x, w):
        return jnp.sin(constrained(x @ w, "y", "x")).sum()

    plan = planned(function, X, array(WIDTH, HIDDEN), verify=None)
    (value,) = plan.execution.units.graph.program.constraints
    assert layout_of(plan, value) == PartitionSpec("y", "x")


def test_open_dimensions_are_left_to_the_planner():
    def function(x, w):
        return jnp.sin(constrained(x @ w, OPEN, "x")).sum()

    plan = planned(function, X, array(WIDTH, HIDDEN), verify=None)
    (value,) = plan.execution.units.graph.program.constraints
    _, columns = layout_of(plan, value)
    assert columns == "x"
    assert not any("constrains them" in note.text for note in plan.notes)


def test_in_a_scan_as_well():
    def function(x, weights):
        def layer(x, w):
            return constrained(jnp.tanh(x @ w), "y", None), None

        return jax.lax.scan(layer, x, weights)[0].sum()

    plan = planned(function, array(512, WIDTH), array(4, WIDTH, WIDTH), verify=None)
    program = plan.execution.units.graph.program
    assert program.loops and program.constraints
    assert {str(layout_of(plan, v)) for v in program.constraints} == {str(PartitionSpec("y", None))}


def other_axes(x, w):
    return jnp.sin(constrained(x @ w, "data", None, names=("data", "model"))).sum()


def contradicted(x, w):
    y = kiwi.hint(x @ w, sharding=PartitionSpec(None, "y"))
    return jnp.sin(constrained(y, "x", None)).sum()


@pytest.mark.parametrize("function", [other_axes, contradicted])
def test_what_cannot_be_followed_is_noted(function):
    plan = planned(function, X, array(WIDTH, HIDDEN))
    assert plan.fits
    (note,) = [note for note in plan.notes if "constrains them" in note.text]
    assert "1 values" in note.text and __name__.rpartition(".")[2] in note.text
