"""Solutions that anyone would try first, and plans that are at least as fast."""

import functools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import kiwi
from benchmarks.starts.drawn import drawn
from examples import gpt, mlp
from kiwi.campaign.obvious_starts import obvious_starts
from kiwi.campaign.problem_search import ProblemSearch
from kiwi.campaign.tools import Tools
from kiwi.planners.registry import planner_named
from kiwi.problem.build import PlanningProblem
from kiwi.problem.solved import Start
from kiwi.solver import SolveStatus, evaluate, solve
from tests.helpers.planning import array

MLP = mlp.MlpConfig(layers=2, width=256, batch=1024, optimizer="adam")
GPT = gpt.GptConfig(layers=1, width=64, heads=4, batch=16, sequence=32, vocabulary=128)


def two_products(weights, x):
    """A step of gradient descent on two matmuls."""

    def loss(weights):
        return jnp.mean(jnp.tanh(x @ weights[0]) @ weights[1])

    gradients = jax.grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]


def formulated(function, arguments, **options) -> PlanningProblem:
    planned = kiwi.jit(function, verify=None, donate_argnums=0, **options)
    step = planned.traced(*arguments)
    return planner_named("joint").formulate(step, 2**40, planned.settings)


@functools.cache
def products() -> PlanningProblem:
    weights = [array(512, 2048), array(2048, 512)]
    return formulated(two_products, (weights, array(4096, 512)), mesh_shape=(4,))


def specs_of(planning: PlanningProblem, solution) -> list[P]:
    """Returns the PartitionSpecs of the arguments."""
    found = planning.source_shardings(solution).values()
    return [planning.mesh.partition_spec(sharding) for sharding in found]


def test_they_are_data_parallelism_and_megatron_s_sharding():
    found = [specs_of(products(), start) for start in obvious_starts(products())]
    assert [P(None, None), P(None, None), P("x", None)] in found
    assert [P(None, "x"), P("x", None), P(None, None)] in found
    is_fsdp = [P(None, None) not in specs and specs[2] == P("x", None) for specs in found]
    assert any(is_fsdp)


def test_data_parallelism_is_nearly_the_fastest_that_its_arguments_allow():
    """Sums over a batch are whole where the next unit reads them so: scattered ones are cheaper
    alone, and gathered then."""

    def normalised(weights, x):
        def loss(weights):
            normal = x
            for w in weights:
                rows = jnp.tanh(normal @ w)
                normal = (rows - rows.mean(0)) * jax.lax.rsqrt(rows.var(0) + 1e-3)
            return jnp.mean(normal**2)

        gradients = jax.grad(loss)(weights)
        return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]

    arguments = [array(256, 256)] * 2, array(4096, 256)
    planning = formulated(normalised, arguments, mesh_shape=(8,), profile="v5e")
    start = obvious_starts(planning)[0]
    nodes = list(planning.problem.nodes)
    for k in range(len(planning.sources)):
        is_chosen = np.arange(nodes[k].costs.size) == start[k]
        costs = np.where(is_chosen, nodes[k].costs, np.inf)
        nodes[k] = replace(nodes[k], costs=costs, parts={})
    least = solve(replace(planning.problem, nodes=tuple(nodes)), gap=1e-6)
    assert least.status is SolveStatus.OPTIMAL
    assert evaluate(planning.problem, start).cost <= 1.05 * least.objective  # It was 1.63.


def test_all_are_solutions_that_keep_all_or_compute_again_what_may_be():
    for module, config, profile in ((mlp, MLP, "h100-sxm"), (gpt, GPT, "v5e"), (gpt, GPT, "cpu")):
        arguments = module.abstract_state(config), module.abstract_batch(config)
        step = module.make_train_step(config)
        planning = formulated(step, arguments, mesh_shape=(2, 2), profile=profile)
        starts = obvious_starts(planning)
        assert len(starts) >= 8
        again = set()
        for start in starts:
            assert np.isfinite(evaluate(planning.problem, start).cost)
            chosen = planning.unit_choices(start)
            again.add(sum(residency.recomputes for _, residency in chosen))
        assert min(again) == 0 and max(again) > 3


@pytest.mark.parametrize("finds_any", [True, False])
def test_a_search_that_ends_behind_one_begins_again_with_it(finds_any, monkeypatch):
    """Of the first search only the slowest solution, or none, gets through."""
    starts, given, begun = obvious_starts(products()), Tools.solve, []
    seconds = {evaluate(products().problem, start).cost: start for start in starts}

    def poor(self, problem, allowed, warm_start=None, **options):
        result = given(self, problem, allowed, warm_start, **options)
        begun.append(warm_start)
        if warm_start is not None:
            return result
        slowest = seconds[max(seconds)] if finds_any else None
        objective = max(seconds) if finds_any else None
        status = SolveStatus.FEASIBLE if finds_any else SolveStatus.NO_SOLUTION_FOUND
        return replace(result, solution=slowest, objective=objective, status=status)

    monkeypatch.setattr(Tools, "solve", poor)
    weights = [array(512, 2048), array(2048, 512)]
    plan = kiwi.plan(
        two_products,
        weights,
        array(4096, 512),
        mesh_shape=(4,),
        donate_argnums=0,
        verify=None,
        memory_budget=2**40,
    )
    assert begun[0] is None and begun[1] == seconds[min(seconds)]
    assert plan.estimate.step_seconds <= min(seconds)


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_random_plans_are_as_fast_as_the_best_one_that_fits(seed: int):
    rng = np.random.default_rng(seed)
    layers, width = int(rng.integers(1, 4)), int(2 ** rng.integers(5, 9))
    config = mlp.MlpConfig(layers=layers, width=width, batch=int(2 ** rng.integers(6, 13)))
    arguments = mlp.abstract_state(config), mlp.abstract_batch(config)
    mesh_shape = [(4,), (2, 2), (2, 4), (8,)][rng.integers(4)]
    options = {"mesh_shape": mesh_shape, "profile": ["v100-sxm2", "h100-sxm"][rng.integers(2)]}
    planning = formulated(mlp.make_train_step(config), arguments, **options)
    priced = [evaluate(planning.problem, start) for start in obvious_starts(planning)]
    budget = int(rng.choice([price.peak_bytes for price in priced]) * rng.uniform(1.0, 1.3))
    best = min(price.cost for price in priced if price.peak_bytes <= budget)
    plan = kiwi.plan(
        mlp.make_train_step(config),
        *arguments,
        memory_budget=budget,
        verify=None,
        donate_argnums=0,
        effort="quick",
        gap=0.05,  # few rounds
        **options,
    )
    assert plan.estimate.step_seconds <= best * (1 + 1e-9)


def test_a_start_that_a_lowered_limit_leaves_out_is_the_plan_where_nothing_else_fits():
    """As where the heap of what the search finds first wastes much."""
    case = drawn(48)
    assert case.name == "residual norm, 1536 x 1536 (48 768)"
    options = {"mesh_shape": case.mesh_shape, "profile": case.profile, "verify": None}
    planned = kiwi.jit(case.step, donate_argnums=0, memory_budget=1, **options)
    step, joint = planned.traced(*case.arguments), planner_named("joint")
    tools = Tools.of(planned.settings).part(0.01)
    problem = joint.formulate(step, 2**40, tools.settings)
    priced = [evaluate(problem.problem, start) for start in obvious_starts(problem)]
    least = min(priced, key=lambda price: price.peak_bytes)
    budget = int(1.5 * least.peak_bytes)  # Some heaps waste much.
    search = ProblemSearch(
        joint, step, tools.with_settings(memory_budget_bytes=budget), Start(problem)
    )
    search.propose(budget)
    with pytest.raises(kiwi.errors.InfeasibleBudgetError):
        search.propose(1)
    found = next(search.known(math.inf))
    assert found.plan.fits
    assert found.plan.solve_result.objective in [price.cost for price in priced]
    assert not [*search.known(found.plan.estimate.step_seconds)]
