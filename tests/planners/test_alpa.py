"""The paper's baselines: their recomputation, their numbers, and that "joint" is as fast."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kiwi
from examples import encoder, gpt
from kiwi.errors import InfeasibleBudgetError, InvalidFunctionError
from kiwi.hlo.graph import Phase
from kiwi.memory.residency import rewritten
from kiwi.planners.alpa import RULE_BASED, attention_core
from tests.helpers.on_cpu import ON_CPU
from tests.helpers.planning import array, units_of

MODELS = {"encoder": encoder, "gpt": gpt}
NO_LIMIT = "1TiB"


def _step(module, config):
    """Returns a step of gradient descent. AdamW would amplify the rounding errors of gradients that
    are zero."""

    def step(params, batch):
        loss, gradients = jax.value_and_grad(module.loss, argnums=2)(config, None, params, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    return step


def _planned(
    model: str, planner: str, budget: int | str = NO_LIMIT, *, layers: int = 2, **more: Any
) -> Any:
    module = MODELS[model]
    config = replace(module.SIZES["tiny"], vocabulary=0, layers=layers)
    step = _step(module, config)
    options = {"mesh_shape": (2, 4), "donate_argnums": 0, "time_limit_seconds": 5.0, "gap": 0.03}
    options |= more
    planned = kiwi.jit(step, planner=planner, memory_budget=budget, **options)
    params = module.abstract_state(config).params
    return planned.plan(params, module.abstract_batch(config)), step, config


def _primitives(plan, unit):
    program = plan.execution.units.graph.program
    return [program.equations[e].name for e in plan.execution.units.units[unit].equations]


@pytest.fixture(scope="module", params=sorted(MODELS))
def free(request):
    """Returns the model's name, and its plan without recomputation and without a limit."""
    return request.param, _planned(request.param, "alpa", verify=None)[0]


@pytest.fixture(scope="module")
def free_layer():
    """The same of one layer of the GPT."""
    return _planned("gpt", "alpa", layers=1, verify=None)[0]


def test_dots_recomputes_all_that_has_no_matmul_and_is_needed_again(free):
    plan = _planned(free[0], "alpa+dots", verify=None)[0]
    units, again = plan.execution.units, plan.execution.recomputed
    assert again
    kept = [u for u in units.units if u.phase is Phase.FORWARD and u.index not in again]
    assert not any("dot_general" in _primitives(plan, u) for u in again)
    late = {r for u in units.units if u.phase is not Phase.FORWARD for r in u.reads}
    for unit in kept:
        is_result = any(o in units.graph.program.result_values for o in unit.outputs)
        is_matmul = "dot_general" in _primitives(plan, unit.index)
        read_again = any(set(unit.outputs) & set(units.units[u].reads) for u in again)
        assert is_matmul or is_result or not (set(unit.outputs) & late or read_again)


def test_megatron_recomputes_scores_and_softmax_of_every_layer_and_no_more(free):
    model = free[0]
    plan = _planned(model, "alpa+megatron", verify=None)[0]
    layers, again = MODELS[model].SIZES["tiny"].layers, plan.execution.recomputed
    stacks = plan.execution.units.graph.program.equations
    units = plan.execution.units.units
    matmuls = [u for u in again if "dot_general" in _primitives(plan, u)]
    assert len(matmuls) == layers
    for unit in matmuls:
        eqn = stacks[units[unit].root].jaxpr_eqn
        # Scores: queries by keys, contracted over the heads' width, batched over batch and heads.
        assert len(eqn.params["dimension_numbers"][1][0]) == 2
        assert plan.execution.units.graph.program.values[units[unit].outputs[0]].shape[-1] == 32
    # Its sum and its quotient compute the exponential, each for itself.
    assert sum("exp" in _primitives(plan, u) for u in again) == 2 * layers
    assert not any({"rsqrt", "tanh"} & set(_primitives(plan, u)) for u in again)


def test_a_step_without_attention_has_no_core():
    def step(w, x):
        return jax.grad(lambda w: jnp.sum(jax.nn.softmax(jnp.tanh(x @ w)) ** 2))(w)

    with pytest.raises(InvalidFunctionError, match="no attention core"):
        attention_core(units_of(step, array(8, 8), array(4, 8)), 0, None)  # type: ignore[arg-type]


def test_two_passes_recompute_more_under_tighter_budgets_and_nothing_without(free_layer):
    peak = free_layer.estimate.peak_bytes
    assert not _planned("gpt", "two-pass", layers=1, verify=None)[0].execution.recomputed
    counts = []
    for share in (1.0, 0.7):
        found = _planned("gpt", "two-pass", int(share * peak), layers=1, verify=None)
        counts.append(len(found[0].execution.recomputed))
    assert counts[0] <= counts[1]


def test_two_passes_name_the_first_when_it_fails():
    with pytest.raises(InfeasibleBudgetError, match="unsharded values") as caught:
        _planned("gpt", "two-pass", 1000, layers=1, verify=None)
    assert (caught.value.least_peak_bytes or 0) > 1000


def test_joint_is_never_slower_by_more_than_its_gap(free_layer):
    options: Any = {"layers": 1, "verify": None}
    rules = "alpa+dots", "alpa+megatron"
    bases = [free_layer, *(_planned("gpt", rule, **options)[0] for rule in rules)]
    budget = max(base.estimate.peak_bytes for base in bases)
    bases.append(_planned("gpt", "two-pass", budget, **options)[0])
    joint = _planned("gpt", "joint", budget, time_limit_seconds=10.0, **options)[0]
    assert joint.estimate.peak_bytes <= budget
    slack = 1 + joint.solve_result.gap
    for base in bases:
        assert base.estimate.peak_bytes <= budget
        assert joint.estimate.step_seconds <= slack * base.estimate.step_seconds


@pytest.mark.parametrize("planner", [*(p.name for p in RULE_BASED), "two-pass"])
def test_a_verified_plan_computes_the_same(planner):
    model, budget = "gpt", NO_LIMIT
    options: Any = {"layers": 1, "profile": ON_CPU}
    if planner == "two-pass":
        free = _planned(model, "alpa", verify=None, **options)[0]
        budget = int(0.8 * free.estimate.peak_bytes)
    plan, step, config = _planned(model, planner, budget, verify="cpu", **options)
    assert plan.compiled.peak_bytes <= plan.memory_budget_bytes
    assert plan.planner == planner
    params, batch = MODELS[model].make_state(config).params, MODELS[model].make_batch(config)
    want = jax.tree.leaves(step(params, batch))
    mesh = plan.mesh.jax_mesh()
    placed = [
        jax.device_put(leaf, sharding)
        for leaf, sharding in zip(
            jax.tree.leaves((params, batch)), plan.leaf_shardings(mesh), strict=True
        )
    ]
    for expected, found in zip(want, plan.jit(mesh)(*placed), strict=True):
        np.testing.assert_allclose(expected, found, rtol=1e-4, atol=1e-5)


def test_a_rewritten_unit_has_one_residency_and_runs_when_it_is_needed(free):
    units = free[1].execution.units
    everything = frozenset(u.index for u in units.units)
    found = rewritten(units, everything)
    assert all(len(r.options) == 1 for r in found)
    again = {u: r.options[0].recompute_at for u, r in enumerate(found) if r.options[0].recomputes}
    assert again
    for unit, time in again.items():
        assert time is not None
        readers = {r for o in units.units[unit].outputs for r in units.readers.get(o, ())}
        late = [r for r in readers if units.units[r].phase is not Phase.FORWARD]
        assert all(time <= r for r in late)
        assert time in late or time in [again[r] for r in readers if r in again]
        assert all(time <= (again[r] or 0) for r in readers if r in again)
        for read in units.units[unit].reads:
            if read in units.producer:
                assert found[units.producer[read]].options[0].available_at(time)
