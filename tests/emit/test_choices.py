"""Planned `while`s and conditionals compute the same as plain ones, in the predicted memory."""

import jax
import numpy as np
import pytest

import kiwi
from kiwi.hlo.loops import LoopKind
from kiwi.memory.loop_bodies import LoopBody, loop_bodies
from tests.helpers.loops import CHOICES, branching
from tests.helpers.on_cpu import ON_CPU

OPTIONS = {
    "mesh_shape": (2, 4),
    "profile": ON_CPU,
    "memory_budget": "1GiB",
    "time_limit_seconds": 5,
}


def assert_equal_results(planned, loop):
    for found, wanted in zip(
        jax.tree.leaves(planned(*loop.args)), jax.tree.leaves(loop.step(*loop.args)), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", CHOICES)
def test_a_planned_choice_computes_the_same_in_the_memory_predicted(name):
    loop = CHOICES[name]()
    planned = kiwi.jit(loop.step, **OPTIONS)
    plan = planned.plan(*loop.args)
    assert plan.compiled is not None
    assert plan.estimate.peak_bytes == pytest.approx(plan.compiled.peak_bytes, rel=0.25)
    assert any(d.sharding != (None,) * len(d.sharding) for d in plan.decisions)
    assert_equal_results(planned, loop)


@pytest.mark.parametrize("name", ["cond of two branches", "bounded while"])
def test_whichever_branch_runs(name):
    loop = CHOICES[name]()
    planned = kiwi.jit(loop.step, **OPTIONS, verify=None)
    other = (*loop.args[:-1], -loop.args[-1])
    assert_equal_results(planned, type(loop)(loop.step, other, loop.loops))


def test_a_residual_is_computed_again_in_the_backward_branch():
    """On one device only recomputation saves memory; it runs where the backward branch runs."""
    loop = branching()
    planned = kiwi.jit(loop.step, **OPTIONS | {"mesh_shape": (1, 1), "verify": None})
    free = planned.plan(*loop.args).peak_bytes
    planned = planned.with_options(memory_budget=int(0.8 * free))
    plan = planned.plan(*loop.args)
    again, units = plan.execution.recomputed, plan.execution.units
    assert again
    root = loop_bodies(units, plan.execution.schedule.steps)
    kinds = [units.graph.program.loops[i.loop].kind for i in root.items if isinstance(i, LoopBody)]
    assert kinds == [LoopKind.SWITCH] * 2
    backward = [i for i in root.items if isinstance(i, LoopBody)][1]
    assert again == {s.unit for s in backward.steps() if s.is_again}
    assert_equal_results(planned, loop)
