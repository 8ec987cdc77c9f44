"""Problems of small functions: residencies, edges, dominance."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kiwi.hlo.graph import Phase
from kiwi.memory.residency import Residency, residencies
from kiwi.mesh import TensorSharding
from kiwi.problem.strategy_table import StrategyTable
from kiwi.solver import evaluate, solve
from tests.helpers.planning import WAITING, array, problem_of, units_of
from tests.helpers.three_layers import W, X, forward_tanhs, loss


@pytest.fixture(scope="module")
def units():
    return units_of(jax.value_and_grad(loss), W, X)


def test_forward_values_read_backward_may_be_kept_or_recomputed(units):
    options = residencies(units)
    for unit in forward_tanhs(units):
        late = [
            r
            for o in unit.outputs
            for r in units.readers[o]
            if units.units[r].phase is not Phase.FORWARD
        ]
        found = options[unit.index]
        assert found.options[0] == Residency(None, max(late))
        assert min(late) in {r.recompute_at for r in found.options}


def test_a_chain_may_be_recomputed_at_the_time_of_its_consumer(units):
    first, second, _ = forward_tanhs(units)
    options = residencies(units)
    times = {r.recompute_at for r in options[second.index].options if r.recomputes}
    earlier = {r.recompute_at for r in options[first.index].options if r.recomputes}
    # The backward pass needs the second layer before the first: with the first's own time comes
    # that of its consumer.
    assert min(times) < max(earlier) and times & earlier


def test_backward_units_and_results_are_kept(units):
    results = units.graph.program.results
    for unit, residency in zip(units.units, residencies(units), strict=True):
        if unit.phase is not Phase.FORWARD or set(unit.outputs) & set(results):
            assert all(not option.recomputes for option in residency.options)


def test_without_recomputation_everything_has_one_option(units):
    assert all(len(r.options) == 1 for r in residencies(units, recompute=False))


@pytest.mark.parametrize(
    ("residency", "time", "available"),
    [
        (Residency(None, 7), 7, True),
        (Residency(None, 7), 8, False),
        (Residency(5, 7), 4, False),
        (Residency(5, 7), 5, True),
        (Residency(5, 7), 8, False),
    ],
)
def test_a_value_is_available_while_it_lives(residency, time: int, available: bool):
    assert residency.available_at(time) is available


def random_choice(planning, rng):
    return [int(rng.integers(node.costs.size)) for node in planning.problem.nodes]


@pytest.mark.parametrize("seed", range(12))
def test_a_solution_costs_the_same_in_the_problem_of_its_choices_alone(units, seed: int):
    planning = problem_of(units, (2, 4), carried={1: 0})
    solution = random_choice(planning, np.random.default_rng(seed))
    restricted = planning.restricted(solution)
    whole = evaluate(planning.problem, solution)
    alone = evaluate(restricted.problem, [0] * len(restricted.problem.nodes))
    assert alone.cost == pytest.approx(whole.cost)
    assert alone.peak_bytes == whole.peak_bytes
    np.testing.assert_array_equal(alone.usage_bytes, whole.usage_bytes)
    assert len(alone.violations) == len(whole.violations)
    if math.isfinite(alone.cost):
        assert sum(alone.parts.values()) == pytest.approx(alone.cost + alone.hidden)


@pytest.mark.parametrize("seed", range(12))
def test_recomputation_may_only_read_what_is_there(units, seed: int):
    """The problem forbids exactly the choices whose recomputations read a dropped value."""
    planning = problem_of(units, (1, 1))
    solution = random_choice(planning, np.random.default_rng(seed))
    residency = [r for _, r in planning.unit_choices(solution)]
    missing = [
        (unit.index, value)
        for unit, own in zip(units.units, residency, strict=True)
        for value in unit.reads
        if own.recompute_at is not None
        and value in units.producer
        and not residency[units.producer[value]].available_at(own.recompute_at)
    ]
    assert evaluate(planning.problem, solution).feasible == (not missing)


def test_arguments_that_the_caller_fixes_have_one_option(units):
    rows = TensorSharding(((0,), ()))
    planning = problem_of(units, (2, 4), arguments={1: rows})
    argument = units.graph.program.arguments[1]
    (source,) = [s for s in planning.sources if s.value == argument]
    assert source.shardings == (rows,)


def test_results_that_the_caller_fixes_are_paid_for(units):
    free, fixed = (
        problem_of(units, (2, 4), results=results)
        for results in ({}, {1: TensorSharding(((0,), (1,)))})
    )
    extra = sum(
        a.costs.sum() - b.costs.sum()
        for a, b in zip(fixed.problem.nodes, free.problem.nodes, strict=True)
    )
    assert extra > 0


def small_layer(w, x):
    return (jnp.tanh(x @ w) @ w).sum()


@pytest.mark.parametrize("part", [None, 0.8, 0.6, 0.45])
def test_leaving_out_dominated_strategies_loses_no_optimum(monkeypatch, part: float | None):
    units = units_of(jax.grad(small_layer), array(1024, 1024), array(512, 1024))

    def optimum(limit):
        planning = problem_of(units, (2, 2), profile=WAITING)
        problem = dataclasses.replace(planning.problem, limit_bytes=limit)
        return problem.option_count, solve(problem, solver="highs", gap=0.0)

    free_peak = optimum(None)[1].peak_bytes
    limit = None if part is None else int(part * free_peak)
    fewer, with_dominance = optimum(limit)
    monkeypatch.setattr(StrategyTable, "undominated", lambda _table, _unit, found: tuple(found))
    more, without = optimum(limit)
    assert fewer < more
    assert with_dominance.status == without.status
    if without.objective is not None:
        assert with_dominance.objective == pytest.approx(without.objective, rel=1e-6)
