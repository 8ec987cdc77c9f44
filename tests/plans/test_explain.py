"""Explanations, what-if and differences of plans."""

import pytest
from jax.sharding import PartitionSpec

import kiwi
from examples import mlp
from kiwi import errors
from kiwi.interval import bytes_at
from kiwi.plans.document import document
from kiwi.plans.explain import pin
from kiwi.plans.explain_text import explanation_text, find_in_document
from kiwi.problem.translation import copies_that_follow, follow
from kiwi.solver import evaluate
from tests.helpers.planning import array

CONFIG = mlp.MlpConfig(layers=2, width=32, batch=64)
STEP = mlp.make_train_step(CONFIG)
STATE, BATCH = mlp.abstract_state(CONFIG), mlp.abstract_batch(CONFIG)


def make_plan(**options):
    options = {"mesh_shape": (2, 4), "verify": None, "in_shardings": (None, None), **options}
    return kiwi.plan(STEP, STATE, BATCH, **options)


@pytest.fixture(scope="module")
def plan():
    fixed = (None, PartitionSpec("x"))
    return make_plan(in_shardings=fixed, donate_argnums=0)


@pytest.fixture(scope="module")
def tight(plan):
    budget = int(0.85 * plan.estimate.peak_bytes)
    fixed = (None, PartitionSpec("x"))
    return make_plan(in_shardings=fixed, donate_argnums=0, memory_budget=budget)


def test_the_breakdown_sums_to_the_estimate(plan, tight):
    for found in (plan, tight):
        total = sum(decision.costs.total_seconds for decision in found.decisions)
        assert total == pytest.approx(found.estimate.step_seconds + found.estimate.hidden_seconds)
        for time, size in enumerate(found.estimate.memory_bytes):
            assert bytes_at(found.breakdown.buffers, time) == size


def test_a_solution_is_recovered_from_its_breakdown(plan, tight):
    for found in (plan, tight):
        planning = found.origin.planning
        assert found.breakdown.solution_of(planning) == found.solve_result.solution


def test_a_solution_is_carried_to_another_budget_at_the_same_cost(plan, tight):
    source, target = tight.origin.planning, plan.origin.planning
    count = len(source.sources) + len(source.unit_nodes)
    moved = copies_that_follow(target, tight.solve_result.solution[:count])
    priced = evaluate(target.problem, moved)
    assert priced.feasible and priced.cost == pytest.approx(tight.solve_result.objective)


def cost_with_copies_kept(plan, solution):
    """Returns the cost of another solution, with those of the plan's kept copies that this solution
    can keep."""
    planning = plan.origin.planning
    opened = planning.restricted(solution, kept=None)
    offered = {copy.operand_read for copy in opened.copies if len(copy.options) > 1}
    problem = planning.restricted(solution, plan.execution.kept_copies & offered).problem
    return evaluate(problem, [0] * len(problem.nodes)).cost


def test_alternatives_alone_cost_what_the_referee_says(plan):
    planning, solution = plan.origin.planning, plan.solve_result.solution
    checked = 0
    for decision in plan.decisions:
        for found in decision.costs.alternatives:
            wanted = (found.reads, found.results, found.recompute_at)
            allowed = planning.unit_nodes[decision.unit].options_where(
                lambda s, r, w=wanted: (s.reads, s.results, r.recompute_at) == w
            )
            other = follow(planning, solution, decision.unit, allowed)
            cost = cost_with_copies_kept(plan, other)
            assert cost - plan.estimate.step_seconds == pytest.approx(found.change_seconds)
            checked += 1
    assert checked > 10


def test_a_forced_alternative_is_no_better_than_the_plan_and_no_worse_than_alone(plan):
    found = plan.explain("dot_general", forced=2)
    assert found.forced
    for forced in found.forced:
        # The bound knows nothing of kept copies.
        saved = plan.solve_result.objective - plan.estimate.step_seconds
        assert forced.step_seconds >= (plan.solve_result.bound - saved) * (1 - 1e-6)
        alone = plan.estimate.step_seconds + forced.alone_seconds
        assert forced.step_seconds <= alone * (1 + 1e-9) and not forced.reason
    text = str(found)
    for words in ("Costs", "compute", "If forced", "mlp.py", "dot_general"):
        assert words in text


def test_what_cannot_be_is_explained(plan):
    backward = next(k for k, d in enumerate(plan.decisions) if d.phase == "backward")
    assert "backward pass" in str(plan.explain(backward, forced=0))
    options = {"mesh_shape": (2, 4), "verify": None}
    narrow = kiwi.plan(lambda x: (x @ x.T).sum(), array(64, 6), **options)
    texts = [text for decision in narrow.decisions for text in decision.costs.excluded]
    assert any("y (4)" in t and "size 6" in t for t in texts)


def test_an_unknown_operator_is_refused(plan):
    with pytest.raises(errors.InvalidArgumentError, match="nonsense"):
        plan.explain("nonsense")
    with pytest.raises(errors.InvalidArgumentError, match="999"):
        plan.explain(999)


def test_what_if_pins_the_residency(plan):
    kept = next(
        k
        for k, decision in enumerate(plan.decisions)
        if decision.recompute_at is None
        and any(a.recompute_at for a in decision.costs.alternatives)
    )
    changed = plan.what_if(kept, residency="recompute")
    assert changed.decisions[kept].residency == "recompute"
    assert changed.estimate.recompute_seconds > 0
    assert changed.solve_result.objective >= plan.solve_result.bound * (1 - 1e-6)
    back = changed.what_if(kept, residency="keep")
    assert back.decisions[kept].residency == "keep"


def test_what_if_pins_the_sharding(plan):
    index, wanted = next(
        (decision.unit, a.results[0])
        for decision in plan.decisions
        for a in decision.costs.alternatives
        if a.results != decision.results
    )
    changed = plan.what_if(index, sharding=plan.mesh.partition_spec(wanted))
    assert changed.decisions[index].results[0] == wanted


def test_what_if_refuses_what_cannot_be(plan):
    backward = next(k for k, d in enumerate(plan.decisions) if d.phase == "backward")
    with pytest.raises(errors.InvalidArgumentError, match="no option"):
        plan.what_if(backward, residency="recompute")
    with pytest.raises(errors.InvalidArgumentError, match="'drop'"):
        plan.what_if(0, residency="drop")


def test_pinning_leaves_the_options_asked_for_only(plan):
    planning = plan.origin.planning
    pinned = pin(planning, 3, [0])
    costs = pinned.problem.nodes[len(planning.sources) + 3].costs
    assert costs[0] < float("inf") and not (costs[1:] < float("inf")).any()


def test_equal_plans_do_not_differ(plan):
    found = kiwi.diff(plan, plan)
    assert found.same and "decide the same" in str(found)


def test_a_difference_names_what_changed_and_what_it_costs(plan, tight):
    found = kiwi.diff(plan, tight)
    assert not found.same
    totals = {name: (a, b) for name, a, b in found.totals}
    assert totals["step_seconds"] == (plan.estimate.step_seconds, tight.estimate.step_seconds)
    changed = sum(d.change_seconds for d in found.differences)
    seconds = [p.estimate.step_seconds + p.estimate.hidden_seconds for p in (plan, tight)]
    assert changed == pytest.approx(seconds[1] - seconds[0], abs=1e-12)
    text = str(found)
    for words in ("memory_budget_bytes", "differences", "first", "second", "step"):
        assert words in text


def test_plans_for_different_functions_can_be_compared(plan):
    other = mlp.MlpConfig(layers=3, width=32, batch=64)
    state, batch = mlp.abstract_state(other), mlp.abstract_batch(other)
    third = kiwi.plan(mlp.make_train_step(other), state, batch, mesh_shape=(2, 4), verify=None)
    kinds = {d.kind for d in kiwi.diff(plan, third).differences}
    assert "only in second" in kinds


def test_a_document_can_be_explained_without_its_function(plan):
    found = document(plan)
    unit = find_in_document(found, "dot_general")[0]
    text = explanation_text(found, unit)
    assert "dot_general" in text and "If forced" not in text
    identity = next(iter(found["operators"]))
    assert find_in_document(found, identity) == [0] and find_in_document(found, "7") == [7]


def test_operators_of_a_schedule_of_one_device_are_not_explained(tmp_path):
    scheduled = make_plan(mesh_shape=(1,), in_shardings=None, planner="keep-all")
    scheduled.save(tmp_path / "plan.json")
    loaded = kiwi.load_plan(tmp_path / "plan.json").apply(STEP).plan(STATE, BATCH)
    for plan in (scheduled, loaded):
        for operator in (0, "dot_general"):
            with pytest.raises(errors.InvalidArgumentError, match="by keep-all have no prices"):
                plan.explain(operator)
