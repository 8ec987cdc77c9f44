"""The stages of planning: printed, changed, and continued to the plan that `kiwi.plan` makes."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kiwi
from kiwi.errors import InfeasibleBudgetError
from kiwi.targets.registry import TARGETS
from tests.helpers.planning import array

WEIGHTS, BATCH = array(3, 64, 64), array(256, 64)


def step(w, x):
    def loss(w):
        h = x
        for layer in w:
            h = jnp.tanh(h @ layer)
        return jnp.mean(h**2)

    return w - 0.1 * jax.grad(loss)(w)


@pytest.fixture(scope="module")
def kernels():
    return kiwi.trace(step, WEIGHTS, BATCH, donate_argnums=0).kernels("h100-sxm")


def test_the_stages_make_the_plan_that_kiwi_makes(kernels):
    problem = kernels.problem(mesh_shape=(2, 4))
    plan = problem.solve().plan()
    whole = kiwi.plan(
        step, WEIGHTS, BATCH, mesh_shape=(2, 4), profile="h100-sxm", donate_argnums=0, verify=None
    )
    assert plan.estimate.step_seconds == pytest.approx(whole.estimate.step_seconds, rel=0.01)
    assert plan.in_shardings == whole.in_shardings
    arguments = [np.ones(a.shape, a.dtype) for a in (WEIGHTS, BATCH)]
    mesh = plan.mesh.jax_mesh()
    (new,) = plan.jit(mesh)(*plan.place(*arguments, mesh=mesh))
    np.testing.assert_allclose(new, step(*arguments), rtol=1e-5)


def test_each_stage_is_printed_in_a_few_lines(kernels):
    problem = kernels.problem(mesh_shape=(2, 4))
    solution = problem.solve()
    traced = kiwi.trace(step, WEIGHTS, BATCH)
    for stage, said in [
        (traced, "dot_general"),
        (kernels, "passes: outer_products"),
        (problem, "8 x h100-sxm (x=2, y=4)"),
        (solution, "gap"),
    ]:
        assert said in str(stage)
        assert len(str(stage).splitlines()) <= 15


def test_a_changed_stage_changes_what_follows(kernels):
    """If cuBLAS computed the functions behind its matmuls, the step would be faster."""
    bare = TARGETS["cuda"].without("cublas_epilogues")
    graph = bare.kernels(kernels.step.units, kernels.graph.hardware)
    given, changed = (
        stage.problem(mesh_shape=(1,)).solve().plan()
        for stage in (kernels, replace(kernels, graph=graph))
    )
    assert changed.estimate.step_seconds < given.estimate.step_seconds
    assert any(k.maps_apart for k in kernels.graph.kernels)
    assert not any(k.maps_apart for k in graph.kernels)


def test_a_budget_that_nothing_meets_is_refused_when_it_is_solved(kernels):
    problem = kernels.problem(mesh_shape=(2, 4), memory_budget="1KiB")
    with pytest.raises(InfeasibleBudgetError):
        problem.solve()


def test_a_plan_of_the_stages_explains_saves_and_prints_itself(kernels, tmp_path):
    plan = kernels.problem(mesh_shape=(2, 4)).solve().plan()
    explanation = plan.explain("dot_general", forced=1)
    assert "Nearest of" in str(explanation) and "If forced" in str(explanation)
    assert plan.what_if(explanation.decision.unit, residency="keep").decisions
    plan.save(tmp_path / "plan.json")
    saved = kiwi.load_plan(tmp_path / "plan.json")
    assert [d.sharding for d in saved.decisions] == [d.sharding for d in plan.decisions]
    assert "Step time, estimated" in str(plan)
