"""Other orders of a plan's units: the same step, in a smaller heap."""

import functools
from dataclasses import replace
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import kiwi
from examples import mlp
from kiwi.campaign import shares, tools
from kiwi.campaign.problem_search import ProblemSearch
from kiwi.campaign.reordered_units import Ordered
from kiwi.memory import order_search as orders
from kiwi.memory.loop_bodies import loop_bodies
from kiwi.plans.estimate import estimate_solution
from kiwi.problem.solved import Solved
from kiwi.xla import compilers
from tests.helpers.loops import LOOPS
from tests.helpers.on_cpu import WAITING_ON_CPU
from tests.helpers.planning import WAITING, array
from tests.problem.test_kept_copies import ARGUMENTS, OPTIONS, WIDTH, step

CONFIG = mlp.MlpConfig(layers=4, width=64, batch=2048)
ANY = 2**60


def _mlp(budget, **options):
    options = {"mesh_shape": (2, 4), "donate_argnums": 0, "verify": None, "gap": 0.03, **options}
    options["profile"] = WAITING if options["verify"] is None else WAITING_ON_CPU
    options["equal_layers"] = False  # budgets, orders and times below are those of such plans
    return kiwi.jit(mlp.make_train_step(CONFIG), memory_budget=budget, effort="quick", **options)


def _abstract():
    return mlp.abstract_state(CONFIG), mlp.abstract_batch(CONFIG)


@functools.cache
def recomputing():
    free = _mlp("1GiB").plan(*_abstract())
    return _mlp(int(0.7 * free.estimate.peak_bytes)).plan(*_abstract())


def _given(plan):
    """Returns the plan's solution, in the order of its problem."""
    planning = plan.origin.planning
    solution = plan.breakdown.solution_of(planning)
    return Ordered.given(Solved(planning, solution, plan.execution.kept_copies))


def _sequence(ordered):
    return [unit.root for unit in ordered.planning.units.units]


def _estimate(ordered):
    return estimate_solution(ordered.solved)


@pytest.fixture
def reordering(monkeypatch):
    """Lets plans without a check take any other order, even if their heap wastes nothing."""
    take_any_order(monkeypatch)


@pytest.fixture(scope="module")
def reordered():
    """Returns the step that recomputes, planned in another order than `recomputing`."""
    planned = _mlp(recomputing().memory_budget_bytes)
    with pytest.MonkeyPatch.context() as patch:
        take_any_order(patch)
        planned.plan(*_abstract())
    return planned


def take_any_order(monkeypatch):
    monkeypatch.setattr(orders, "MOST_TRIES", 2000)

    propose = ProblemSearch.propose

    def anyhow(self, limit_bytes):
        proposal = propose(self, limit_bytes)
        ordered = proposal.ordered.another(ANY, ANY, 0)
        if ordered is None:  # Everything is in one loop.
            return proposal
        return replace(proposal, plan=self._plan_in(ordered, proposal.plan.solve_result))

    monkeypatch.setattr(ProblemSearch, "propose", anyhow)


def test_the_given_order_is_estimated_alike():
    plan = recomputing()
    assert plan.residency_counts()["recompute"] > 0
    given = _given(plan)
    again = _estimate(given.ordered(range(len(_sequence(given)))))
    assert again == replace(_estimate(given), time_shares=again.time_shares)
    assert given.needed_bytes == plan.estimate.peak_bytes


@pytest.mark.parametrize("seed", range(3))
def test_another_order_is_the_same_step_within_the_limit(seed):
    given = _given(recomputing())
    before = _estimate(given)
    limit = int(1.01 * max(before.memory_bytes))
    other = given.another(limit, ANY, seed)
    assert other is not None and sorted(_sequence(other)) == sorted(_sequence(given))
    after = _estimate(other)
    assert after.step_seconds == pytest.approx(before.step_seconds, rel=1e-12)
    assert after.recompute_seconds == pytest.approx(before.recompute_seconds, rel=1e-12)
    assert max(after.memory_bytes) <= limit
    assert after.collectives == before.collectives
    assert after.peak_bytes == other.needed_bytes


def test_a_heap_that_wastes_nothing_is_left_alone():
    given = _given(recomputing())
    steps = given.steps
    needed = given.needed_bytes
    assert orders.better_order(steps, ANY, needed) == tuple(range(len(steps.runs)))


def test_units_come_behind_what_they_read_and_recomputation_before_its_reader():
    other = _given(recomputing()).another(ANY, ANY, 0)
    units = other.planning.units
    for unit in units.units:
        assert all(units.producer.get(v, -1) < unit.index for v in unit.reads)
    for result, argument in units.aliased_results.items():
        update = units.producer[result]
        assert all(reader <= update for reader in units.readers.get(argument, ()))
    for node in other.planning.unit_nodes:
        (residency,) = node.residency.options
        if residency.recompute_at is not None:
            readers = [u.time for u in units.uses[node.unit] if u.is_late]
            assert node.unit < residency.recompute_at <= min(readers, default=ANY)


def test_a_reordered_step_computes_the_same(reordered):
    state, batch = mlp.make_state(CONFIG), mlp.make_batch(CONFIG)
    wanted = jax.jit(mlp.make_train_step(CONFIG))(state, batch)
    plan = reordered.plan(state, batch)
    assert plan.residency_counts()["recompute"] > 0
    assert _roots(plan) != _roots(recomputing())
    _assert_close(reordered(state, batch), wanted)


@pytest.mark.parametrize("name", LOOPS)
def test_a_reordered_loop_computes_the_same(name, reordering):
    own = LOOPS[name]()
    options = {"mesh_shape": (2, 4), "memory_budget": "1GiB", "verify": None}
    planned = kiwi.jit(own.step, time_limit_seconds=5, **options)
    units = planned.plan(*own.args).execution.units
    assert all(start < end for start, end in units.spans.values())
    listed = loop_bodies(units, range(len(units.units)))
    assert [s.unit for s in listed.steps()] == list(range(len(units.units)))
    _assert_close(planned(*own.args), jax.jit(own.step)(*own.args))


@pytest.fixture
def wasting(monkeypatch):
    """Returns a function that makes the first compiled program waste a number of additional
    bytes."""

    def first_program(more_bytes):
        compile_for, left = compilers.compile_for, [more_bytes]

        def compiled_with_waste(target, step):
            compiled = compile_for(target, step)
            more = left.pop() if left else 0
            wasted = compiled.memory.fragmentation_bytes + more
            memory = replace(compiled.memory, fragmentation_bytes=wasted)
            return replace(compiled, peak_bytes=compiled.peak_bytes + more, memory=memory)

        monkeypatch.setattr(
            tools, "begin_for", lambda target, step: partial(compiled_with_waste, target, step)
        )

    return first_program


def test_another_order_is_compiled_where_a_lower_limit_costs_time(wasting):
    options = {"verify": "cpu", "gap": 0.01}  # a lower limit costs more than that
    budget = 2 * recomputing().memory_budget_bytes
    compiled = _mlp(budget, **options).plan(*_abstract())
    budget = int(1.06 * compiled.peak_bytes)
    wasting(int(0.2 * budget))
    plan = _mlp(budget, **options).plan(*_abstract())
    first, *others = plan.rounds
    assert first.compiled_peak_bytes > budget >= others[-1].compiled_peak_bytes
    assert plan.fits and {other.limit_bytes for other in others} == {first.limit_bytes}
    assert plan.estimate.step_seconds <= compiled.estimate.step_seconds * (1 + 1e-9)


def test_a_lower_limit_that_costs_little_is_taken_at_once(wasting, monkeypatch):
    budget = recomputing().memory_budget_bytes
    monkeypatch.setattr(shares, "LEAST_SLOWER", ANY)
    wasting(int(0.03 * budget))
    plan = _mlp(budget, verify="cpu").plan(*_abstract())
    first, *others = plan.rounds
    assert first.compiled_peak_bytes > budget and plan.fits
    assert all(other.limit_bytes < first.limit_bytes for other in others)


def test_kept_copies_are_kept_by_the_same_readers(reordering):
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((WIDTH, WIDTH)).astype("float32") / 8 for _ in ARGUMENTS[0]]
    x = rng.standard_normal(ARGUMENTS[1].shape).astype("float32")
    wanted = jax.jit(step)(weights, x)
    planned = kiwi.jit(step, **OPTIONS, verify=None)
    plan = planned.plan(weights, x)
    assert plan.execution.kept_copies
    _assert_close(planned(weights, x), wanted)


def test_a_reordered_plan_explains_itself_and_is_saved(reordered, tmp_path):
    plan = reordered.plan(*_abstract())
    total = sum(decision.costs.total_seconds for decision in plan.decisions)
    assert total == pytest.approx(plan.estimate.step_seconds)
    plan.save(tmp_path / "plan.json")
    again = kiwi.load_plan(tmp_path / "plan.json").apply(mlp.make_train_step(CONFIG))
    loaded = again.plan(*_abstract())
    assert _roots(loaded) == _roots(plan) and loaded.origin is not None
    assert loaded.execution.schedule == plan.execution.schedule
    assert loaded.breakdown.solution_of(loaded.origin.planning)


def test_a_seed_gives_one_order():
    given = _given(recomputing())
    found = [_sequence(given.another(ANY, ANY, seed)) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    assert all(a != b for a, b in pairwise((_sequence(given), found[0], found[2])))


def test_what_is_held_from_the_start_is_as_many_buffers_as_results():
    """The gradient of max pooling: indices as large as the result, one array for each dimension."""

    def pooled(x):
        return jnp.sum(lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"))

    def step(x):
        return x - 0.1 * jax.grad(lambda x: pooled(jnp.tanh(x) @ jnp.ones((8, 8))))(x)

    plan = kiwi.plan(step, array(8, 16, 16, 8), mesh_shape=(1,), verify=None, profile="cpu")
    given = _given(plan)
    held = [b for b in given.steps.buffers if b.first < 0]
    assert [b.bytes for b in held] == [4 * 8 * 16 * 16 * 8] * 4
    assert all(b.overwritten_by < 0 for b in held)


def _roots(plan):
    return [unit.root for unit in plan.execution.units.units]


def _assert_close(found, wanted):
    for got, want in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)
