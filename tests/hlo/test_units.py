"""Units: chains, execution order, donated buffers."""

import itertools

import jax
import jax.numpy as jnp
import pytest

from examples import convnet, encoder, gpt, mlp
from kiwi.hlo.graph import Phase
from kiwi.hlo.grouping import build_units
from kiwi.hlo.in_place import overwritable, overwritable_by_operand
from tests.helpers.planning import array, step_graph, units_of

X, W = array(8, 16), array(16, 16)
EXAMPLES = [gpt, encoder, mlp, convnet]


def loss(w, x):
    return jnp.square(jnp.tanh(x @ w[0]) @ w[1]).sum()


def sgd(w0, w1, x):
    grads = jax.grad(loss)((w0, w1), x)
    return w0 - 0.1 * grads[0], w1 - 0.1 * grads[1]


def test_a_unit_is_a_materialised_equation_and_the_chain_in_front_of_it():
    units = units_of(lambda x, y: (jnp.sin(x) * y).sum(), X, X)
    (unit,) = units.units
    names = [units.graph.program.equations[e].name for e in unit.equations]
    assert names == ["sin", "mul", "reduce_sum"]
    assert unit.root == unit.equations[-1]
    assert set(unit.reads) == set(units.graph.program.arguments)


def test_an_absorbed_chain_belongs_to_every_unit_that_reads_it():
    def function(x):
        y = x * 2
        return y.sum(0), y.sum(1)

    first, second = units_of(function, X).units
    assert set(first.equations) & set(second.equations)
    assert first.reads == second.reads


def test_updates_run_as_soon_as_their_gradient_is_there():
    units = units_of(sgd, W, W, X)
    phases = [u.phase for u in units.units]
    # The gradient of the second weight comes first; its update need not wait for the other.
    assert Phase.BACKWARD in phases[phases.index(Phase.UPDATE) :]


def test_a_donated_argument_is_overwritten_behind_its_readers():
    # w1 is read by the backward pass of the first layer, so its update has to wait.
    units = units_of(sgd, W, W, X, donated=(0, 1))
    for result, argument in units.aliased_results.items():
        writer = units.producer[result]
        assert units.readers[argument][-1] <= writer
    assert len(units.aliased_results) == 2


def test_without_donation_an_update_may_run_before_other_readers():
    kept, donated = units_of(sgd, W, W, X), units_of(sgd, W, W, X, donated=(0, 1))
    w1, new_w1 = (kept.graph.program.arguments[1], kept.graph.program.results[1])
    assert kept.readers[w1][-1] > kept.producer[new_w1]
    assert donated.readers[w1][-1] == donated.producer[new_w1]


def test_aliases_pair_results_and_arguments_of_equal_type_in_order():
    def function(a, b, c):
        return c + 1, a + 1, b + 1

    shapes = array(4), array(4), array(8)
    units = units_of(function, *shapes, donated=(0, 1, 2))
    a, b, c = units.graph.program.arguments
    r0, r1, r2 = units.graph.program.results
    assert units.aliased_results == {r0: c, r1: a, r2: b}


def test_arguments_that_are_not_donated_are_not_aliased():
    units = units_of(lambda a, b: (a + 1, b + 1), X, X, donated=(1,))
    assert list(units.aliased_results.values()) == [units.graph.program.arguments[1]]


def test_an_argument_returned_as_it_is_takes_no_buffer():
    units = units_of(lambda a, b: (a, b + 1), X, X, donated=(0,))
    returned, computed = units.graph.program.results
    assert returned not in units.aliased_results
    assert units.aliased_results == {computed: units.graph.program.arguments[0]}


def test_only_forward_units_may_be_recomputed():
    units = units_of(sgd, W, W, X)
    assert {u.phase for u in units.units if u.may_recompute} == {Phase.FORWARD}


def test_units_with_effects_are_not_recomputed():
    def function(w, x):
        h = jnp.tanh(x @ w)
        jax.debug.callback(lambda _: None, h)
        return h.sum()

    units = units_of(jax.grad(function), W, X)
    (unit,) = [u for u in units.units if not u.outputs]
    assert not unit.may_recompute


def test_the_rule_of_a_unit_is_keyed_by_values():
    units = units_of(lambda x, w, b: x @ w + b, X, W, array(16))
    (unit,) = units.units
    x, w, b = units.graph.program.arguments
    reads = dict(unit.rule.reads)
    assert set(reads) == {x, w, b}
    assert reads[b][0] == reads[w][1] == unit.rule.results[0][1]
    assert reads[x][1] == reads[w][0] and set(reads[x][1]) == unit.rule.reduction


@pytest.mark.parametrize("donate", [True, False])
@pytest.mark.parametrize("module", EXAMPLES, ids=lambda m: m.__name__)
def test_units_of_an_example_cover_it_in_an_order_that_can_run(module, donate: bool):
    graph = step_graph(module, module.SIZES["tiny"])
    arguments = graph.program.arguments
    units = build_units(graph, frozenset(arguments) if donate else frozenset())
    covered = {e for u in units.units for e in u.equations}
    assert covered == set(range(len(graph.program.equations)))
    available = {*arguments, *graph.program.constants}
    for unit in units.units:
        assert available.issuperset(unit.reads), f"unit {unit.index} reads what is not there yet"
        available.update(unit.outputs)
    assert all(r in available for r in graph.program.results if isinstance(r, int))
    for unit, read in itertools.product(units.units, units.readers):
        assert (unit.index in units.readers[read]) == (read in unit.reads)


def test_a_map_follows_what_it_writes_over_before_any_update():
    """The update of `w1` waits only for the gradient that the activation's gradient passes on."""

    def step(w0, w1, x):
        def product(w0, w1):
            hidden = jnp.tanh(x @ w0)
            return jnp.square((hidden * jnp.sin(hidden)) @ w1).sum()

        grads = jax.grad(product, argnums=(0, 1))(w0, w1)
        return w0 - 0.1 * grads[0], w1 - 0.1 * grads[1]

    units = units_of(step, W, W, X, donated=(0, 1))
    pairs = 0
    for unit in units.units:
        if unit.phase is Phase.UPDATE:
            continue
        for value in overwritable(units.graph, unit):
            if value in units.producer and units.readers[value] == (unit.index,):
                pairs += 1
                assert units.producer[value] == unit.index - 1
    assert pairs


def test_no_buffer_is_shared_where_a_matmul_merges_dimensions():
    def shared(x):
        units = units_of(lambda x, w: (jnp.sin(x @ w) * jnp.cos(x @ w)) @ w, x, W)
        return [overwritable(units.graph, unit) for unit in units.units]

    assert any(shared(X)) and not any(shared(array(2, 4, 16)))


def pooled(x):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2), (1, 2), "VALID")


@pytest.mark.parametrize(
    ("function", "is_overwritable"),
    [
        (lambda x: pooled(jnp.maximum(x * 2, 0)), True),
        (lambda x: pooled(x), False),
        (lambda x: pooled(x.T * 2), False),
        (lambda x: pooled(jax.lax.optimization_barrier(x * 2) + 1), False),
    ],
    ids=["mapped", "nothing computed", "transposed", "behind a barrier"],
)
def test_who_may_be_written_over_by_what_a_window_slides_over(function, is_overwritable: bool):
    units = units_of(function, array(64, 64))
    found = [overwritable_by_operand(units.graph, unit) for unit in units.units]
    assert any(found) == is_overwritable


def test_nothing_is_written_over_behind_a_barrier_of_the_step():
    units = units_of(lambda x: jax.lax.optimization_barrier(x * 2) + 1, X)
    assert not any(overwritable(units.graph, unit) for unit in units.units)
