"""The least peaks that errors name: never above a known peak, and proven if the error says so."""

import functools
import re

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import kiwi
from kiwi.campaign.known_peaks import at_most_known, known_peak_bytes, note_peak
from kiwi.campaign.obvious_starts import least_peak, with_shardings_of
from kiwi.campaign.refusals import infeasible_budget, with_least_peak
from kiwi.campaign.tools import Tools
from kiwi.errors import BudgetNotMetError, InfeasibleBudgetError, NoPlanFoundError
from kiwi.planners.product import JOINT
from kiwi.solver import SolveResult, SolveStatus, evaluate
from tests.campaign.test_equal_layers import OPTIONS, arguments, step
from tests.helpers.loops import descent
from tests.helpers.planning import array
from tests.memory.test_layers import LISTED, STACKED, WIDTHS, layer, scanned, unrolled

LAYERS = 3
LITTLE_BYTES = 2**20


def jitted(budget, **options):
    return kiwi.jit(step, memory_budget=budget, time_limit_seconds=10.0, **OPTIONS | options)


def refused(budget, **options):
    with pytest.raises(InfeasibleBudgetError) as caught:
        jitted(budget, **options).plan(*arguments(LAYERS))
    return caught.value


@pytest.fixture(scope="module")
def error():
    return refused(LITTLE_BYTES)


def test_the_peak_that_an_error_names_is_below_that_of_any_plan_and_can_be_met(error):
    least = error.least_peak_bytes
    for planner in ("joint", "alpa", "alpa+dots"):
        assert least <= jitted("1TiB", planner=planner).plan(*arguments(LAYERS)).peak_bytes
    near = int(1.3 * least)  # the heap wastes up to a sixth of so little
    assert jitted(near).plan(*arguments(LAYERS)).peak_bytes <= near


def test_no_plan_needs_as_little_is_said_with_a_proof(error):
    assert error.what.startswith("No plan is predicted to need as little as")
    assert LITTLE_BYTES < error.least_peak_bound_bytes <= error.least_peak_bytes
    assert error.__cause__ is not error


def test_a_search_without_a_proof_says_that_none_was_found():
    answer = SolveResult(0.0, None, -np.inf, None, "auto", status=SolveStatus.INFEASIBLE)
    assert infeasible_budget(100, answer).least_peak_bound_bytes == 101
    unproven = with_least_peak(InfeasibleBudgetError("It is too small."), 100, 150)
    assert unproven.what.startswith("No plan was found that is predicted to need as little")
    late = with_least_peak(NoPlanFoundError("No plan was found in 1 s."), 100, 150)
    assert isinstance(late, NoPlanFoundError) and "150 B" in late.what


@pytest.mark.parametrize("least, same", [(200, True), (180, True), (150, False), (None, True)])
def test_only_a_lower_peak_changes_an_error(least, same):
    given = InfeasibleBudgetError("Too small.", least_peak_bytes=180)
    assert (with_least_peak(given, 100, least) is given) == same


def test_recomputation_alone_under_the_fastest_shardings_needs_no_more_than_the_free_plan():
    function = jitted(LITTLE_BYTES)
    traced = function.traced(*arguments(LAYERS))
    problem = JOINT.formulate(traced, LITTLE_BYTES, function.settings)
    found = least_peak(problem, LITTLE_BYTES, Tools(function.settings))
    free = jitted("1TiB").plan(*arguments(LAYERS))
    assert found.start is None and found.peak_bytes < max(free.estimate.memory_bytes)
    enough = least_peak(problem, 2 * found.peak_bytes, Tools(function.settings))
    assert enough.start is not None
    peak_bytes = evaluate(enough.start.problem.problem, enough.start.solution).peak_bytes
    assert peak_bytes <= 2 * found.peak_bytes


def test_fixed_shardings_leave_residencies_open():
    function = jitted("1TiB")
    traced = function.traced(*arguments(LAYERS))
    problem = JOINT.formulate(traced, 2**40, function.settings)
    free = function.plan(*arguments(LAYERS)).solve_result.solution
    fixed = with_shardings_of(problem, problem.problem, free)
    first = len(problem.sources)
    for node, option in zip(fixed.nodes[:first], free, strict=False):
        assert np.flatnonzero(np.isfinite(node.costs)).tolist() == [option]
    for number, unit in enumerate(problem.unit_nodes, start=first):
        possible = np.flatnonzero(np.isfinite(fixed.nodes[number].costs))
        shardings = {unit.choice(option)[0] for option in possible}
        assert len(shardings) == 1 and len(possible) == len(unit.residency.options)


def test_known_plans_lower_what_an_error_names(error):
    function = jitted(LITTLE_BYTES, verify="cpu")  # no other test plans for it
    traced, settings = function.traced(*arguments(2)), function.settings
    assert known_peak_bytes(traced, settings) is None
    note_peak(traced, settings, 3 * LITTLE_BYTES)
    note_peak(traced, settings, 4 * LITTLE_BYTES)
    assert known_peak_bytes(traced, settings) == 3 * LITTLE_BYTES
    named = at_most_known(error, traced, settings)
    assert named.least_peak_bytes == 3 * LITTLE_BYTES < error.least_peak_bytes
    assert re.search("A plan made before needs 3.00 MiB", str(named))
    not_met = BudgetNotMetError("Not met.", plan="a plan", least_peak_bytes=5 * LITTLE_BYTES)
    lowered = at_most_known(not_met, traced, settings)
    assert isinstance(lowered, BudgetNotMetError) and lowered.plan == "a plan"
    assert lowered.least_peak_bytes == 3 * LITTLE_BYTES
    low = InfeasibleBudgetError("Too small.", least_peak_bytes=LITTLE_BYTES)
    assert at_most_known(low, traced, settings) is low


def test_what_is_known_is_known_of_one_step_and_one_way_to_plan(error):
    function = jitted(LITTLE_BYTES, verify="cpu")
    traced, settings = function.traced(*arguments(4)), function.settings
    note_peak(traced, settings, 1000)
    assert known_peak_bytes(function.traced(*arguments(5)), settings) is None
    assert known_peak_bytes(traced, jitted("1GiB").settings) is None  # not compiled
    other = jitted("1GiB", verify="cpu", planner="alpa").settings
    assert known_peak_bytes(traced, other) is None  # it may not be able to
    assert known_peak_bytes(traced, jitted("1GiB", verify="cpu").settings) == 1000


@pytest.mark.parametrize("loss, weights", [(scanned, STACKED), (unrolled, LISTED)])
def test_it_is_at_most_that_of_a_checkpoint_around_each_layer(loss, weights):
    """With the batch sharded by hand; chains within a layer are longer than those offered first."""
    args = weights, array(4096, WIDTHS[0])
    lie = jax.tree.map(lambda _: P(), weights), P("x")
    options = {**OPTIONS, "mesh_shape": (2,), "in_shardings": lie}

    def jitted(layer, **more):
        return kiwi.jit(descent(functools.partial(loss, layer=layer)), **options, **more)

    by_hand = jitted(
        jax.checkpoint(layer), planner="xla", memory_budget="1TiB", respect_user_checkpoint=True
    ).plan(*args)
    budget = by_hand.peak_bytes
    own = jitted(layer, memory_budget=budget, effort="quick")
    problem = JOINT.formulate(own.traced(*args), budget, own.settings)
    found = least_peak(problem, budget, Tools(own.settings))
    assert found.start is not None and found.peak_bytes <= budget
    chosen = evaluate(found.start.problem.problem, found.start.solution)
    assert chosen.feasible and chosen.peak_bytes <= budget
    if loss is scanned:
        assert own.plan(*args).peak_bytes <= budget
