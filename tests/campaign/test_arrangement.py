"""A program over the budget is compiled with another scheduler, or with another placement on the
heap."""

import functools
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import jax.numpy as jnp
import pytest

import kiwi
from examples import mlp
from kiwi.campaign import shares
from kiwi.campaign.barrier_levels import with_needed_barriers
from kiwi.campaign.tools import Tools
from kiwi.planners.registry import planner_named
from kiwi.xla.compilers import compile_for
from kiwi.xla.cpu.compiler import CPU
from kiwi.xla.gpu.compiler import GPU
from kiwi.xla.step import XLAS_OWN, Arrangement, Step
from kiwi.xla.tpu.compiler import TPU
from tests.helpers.begins import begins
from tests.helpers.planning import array


@pytest.fixture(autouse=True)
def prices_as_given(monkeypatch):
    """Turns corrections off. Programs in these tests take made-up times, from which nothing should
    be learnt."""
    monkeypatch.setattr(shares, "MOST_CORRECTIONS", 0)


CONFIG = mlp.MlpConfig(layers=2, width=64, batch=2048)
STATE, BATCH = mlp.abstract_state(CONFIG), mlp.abstract_batch(CONFIG)
OTHERS = [Arrangement(scheduler) for scheduler in TPU.schedulers]
OTHER = OTHERS[0]


@functools.cache
def planned_function() -> kiwi.PlannedFunction:
    return kiwi.jit(
        mlp.make_train_step(CONFIG),
        mesh_shape=(2, 4),
        profile="v5e",
        verify=None,
        donate_argnums=0,
        effort="quick",
    )


def free_peak_bytes() -> int:
    return planned_function().plan(STATE, BATCH).estimate.peak_bytes


def planned(fits: Callable[[Arrangement], bool], wasted_bytes: int) -> kiwi.Plan:
    """Returns a plan made with a compiler whose programs fit if `fits` says so, and are over the
    budget by a tenth otherwise."""
    budget = 2 * free_peak_bytes()

    def compiled(step: Step) -> Any:
        found = compile_for("cpu", step)
        assert found.memory is not None
        peak_bytes = budget if fits(step.arrangement) else int(1.1 * budget)
        memory = replace(found.memory, at_peak=(), fragmentation_bytes=wasted_bytes)
        return replace(found, peak_bytes=peak_bytes, memory=memory)

    function = planned_function()
    tools = Tools(function.settings, begins(compiled))
    return planner_named("joint").plan(function.traced(STATE, BATCH), budget, tools)


@pytest.mark.parametrize(
    ("wanted", "wasted_bytes", "rounds"),
    [
        (XLAS_OWN, 0, 1),
        (OTHER, 0, 2),
        (Arrangement(heap=2), 2**40, 3),
        (replace(OTHER, heap=1), 2**40, 7),
    ],
)
def test_the_first_arrangement_that_fits_is_taken(
    wanted: Arrangement, wasted_bytes: int, rounds: int
):
    plan = planned(lambda given: given == wanted, wasted_bytes)
    assert plan.fits and plan.execution.arrangement == wanted
    assert plan.execution.tied_steps == frozenset()
    assert len(plan.rounds) == rounds


def test_options_are_those_of_check_run_and_overlap():
    told = TPU.arranged(replace(OTHER, heap=3))
    more = {TPU.scheduler_option: OTHER.scheduler, **TPU.heaps[2]}
    for options in (told.run_options, told.check_options, *told.overlapping_options):
        assert more.items() <= options.items()
    assert TPU.arranged(XLAS_OWN).check_options == TPU.check_options
    for compiler in (CPU, GPU):
        assert compiler.arranged(OTHER).run_options == compiler.run_options


def test_a_plan_runs_as_it_was_arranged_also_from_a_file(tmp_path: Any):
    plan = planned(lambda given: given == OTHER, 0)
    assert plan.step.arrangement == OTHER
    assert plan.run_options(TPU)[TPU.scheduler_option] == OTHER.scheduler
    assert TPU.scheduler_option not in plan.run_options(GPU)
    assert plan.step_for(GPU).arrangement == XLAS_OWN
    plan.save(tmp_path / "plan.json")
    again = kiwi.load_plan(tmp_path / "plan.json").apply(mlp.make_train_step(CONFIG))
    assert again.plan(STATE, BATCH).execution.arrangement == OTHER


@pytest.mark.skipif(find_spec("libtpu") is None, reason="the extra aot-tpu is not installed")
def test_xla_tpu_has_the_schedulers_and_ways_to_place_buffers():
    """Six pairs of products, of which each pair waits for nothing."""
    plan = kiwi.plan(
        lambda x, *ws: sum((jnp.tanh(x @ w) @ w).sum() for w in ws),
        array(1024, 1024),
        *[array(1024, 1024)] * 6,
        mesh_shape=(1,),
        profile="v5e",
        verify=None,
    )
    plan = with_needed_barriers(plan)
    assert plan is not None

    def order(arrangement: Arrangement) -> list[int]:
        memory = TPU.compile(replace(plan.step, arrangement=arrangement)).memory
        assert memory is not None
        return [u for u in memory.units if u >= 0]

    own = order(XLAS_OWN)
    assert all(order(each) != own for each in OTHERS)
    assert order(Arrangement(heap=1)) == own
