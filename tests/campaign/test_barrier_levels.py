"""Plans start with the barriers that they need, and get more if the compiled program requires
it."""

import functools
from dataclasses import replace

import jax
import pytest

import kiwi
from examples import mlp
from kiwi.campaign import shares
from kiwi.campaign.barrier_levels import (
    all_ties,
    first_tie,
    more_tied_steps,
    with_more_tied_steps,
    with_needed_barriers,
    with_tied_steps,
)
from kiwi.campaign.tools import Tools
from kiwi.emit.barriers import barriers
from kiwi.planners.registry import planner_named
from kiwi.xla.compilers import begin_for, compile_for
from kiwi.xla.cpu.compiler import CPU
from kiwi.xla.gpu.compiler import GPU
from tests.helpers.begins import begins
from tests.helpers.on_cpu import ON_CPU


@pytest.fixture(autouse=True)
def prices_as_given(monkeypatch):
    """Turns corrections off. Programs in these tests take made-up times, from which nothing should
    be learnt."""
    monkeypatch.setattr(shares, "MOST_CORRECTIONS", 0)


CONFIG = mlp.MlpConfig(layers=4, width=64, batch=2048)
EVERY = 50
"""More barriers than any plan that ties some of its steps has. A plan that ties all steps has
more."""
STATE, BATCH = mlp.abstract_state(CONFIG), mlp.abstract_batch(CONFIG)


@functools.cache
def planned_function() -> kiwi.PlannedFunction:
    """Returns the function planned for XLA:GPU, whose own order keeps memory low."""
    return kiwi.jit(
        mlp.make_train_step(CONFIG),
        mesh_shape=(2, 4),
        profile="h100-sxm",
        verify=None,
        donate_argnums=0,
        time_limit_seconds=5,
    )


@functools.cache
def compiled_under(budget_bytes: int, planner: str = "joint") -> kiwi.Plan:
    """Returns a plan checked by XLA:CPU, whose order needs barriers."""
    function = planned_function()
    step = function.traced(STATE, BATCH)
    tools = Tools(function.settings, functools.partial(begin_for, "cpu"))
    return planner_named(planner).plan(step, budget_bytes, tools)


@functools.cache
def free() -> kiwi.Plan:
    return compiled_under(2**40)


def test_a_plan_that_fits_has_the_barriers_that_it_needs_alone():
    assert free().execution.tied_steps == frozenset() and not free().rounds[0].is_tied
    assert not any(barriers(free().execution).steps)
    assert len(free().rounds) == 1


def test_a_plan_that_does_not_gets_more_until_it_fits():
    every = compile_for("cpu", replace(free(), execution=untied(free())).step).peak_bytes
    budget = (every + free().compiled.peak_bytes) // 2
    assert every < budget < free().compiled.peak_bytes
    plan = compiled_under(budget)
    assert plan.fits
    assert not plan.rounds[0].is_tied
    assert len(plan.rounds) > 1
    assert plan.rounds[-1].compiled_peak_bytes == plan.compiled.peak_bytes


def untied(plan: kiwi.Plan):
    return replace(plan.execution, tied_steps=None)


@pytest.mark.parametrize("ties", [first_tie, all_ties])
def test_ties_only_grow_and_end_with_all_steps(ties):
    budget = int(0.9 * free().compiled.peak_bytes)
    plan = replace(free(), memory_budget_bytes=budget)
    over_bytes = plan.peak_bytes - budget
    tied = more_tied_steps(plan, over_bytes, ties)
    assert tied
    tried = replace(with_tied_steps(free(), tied), memory_budget_bytes=budget)
    tried = replace(tried, compiled=compile_for("cpu", tried.step))
    more = more_tied_steps(tried, tried.peak_bytes - budget, ties)
    assert more is None or more > tied
    assert more_tied_steps(replace(tried, execution=untied(tried)), over_bytes, ties) is None
    assert more_tied_steps(replace(tried, compiled=None), over_bytes, ties) is None


def test_the_first_tie_waits_for_what_was_to_be_done_by_then():
    """Or is in front of what the program computes early."""
    execution = free().execution
    graph, steps = execution.units, execution.schedule.steps
    value = next(v for v, unit in graph.producer.items() if graph.readers.get(v))
    unit, reader = graph.producer[value], max(map(steps.index, graph.readers[value]))
    assert set(first_tie(execution, unit, steps.index(unit) - 1)) == {steps.index(unit)}
    assert set(first_tie(execution, unit, reader)) == {reader}
    assert set(first_tie(execution, unit, reader + 3)) == {reader + 2}


@pytest.mark.parametrize(
    ("peaks", "after"),
    [
        ((100, 90, 80), [(0, first_tie), (1, first_tie)]),
        ((100, 100, 80), [(0, first_tie), (0, all_ties)]),
        ((100, None, 80), [(0, all_ties)]),
    ],
    ids=["few steps help", "few do not", "few fail to compile"],
)
def test_all_that_could_help_is_tied_where_few_steps_do_not(peaks, after):
    """From the first plan on; nothing is tied once a program fits."""
    left = iter(peaks)

    def compiled(plan):
        peak_bytes = next(left)
        program = replace(free().compiled, peak_bytes=peak_bytes)
        return None if peak_bytes is None else replace(plan, compiled=program)

    def over_bytes(plan):
        return plan.compiled.peak_bytes - 80

    first = compiled(free())
    found = [first, *with_more_tied_steps(first, over_bytes, compiled)]
    for plan, (before, ties) in zip(found[1:], after, strict=True):
        tied = more_tied_steps(found[before], over_bytes(found[before]), ties)
        assert plan.execution.tied_steps == tied


@pytest.mark.slow
def test_every_step_is_tied_at_last_where_some_ties_made_the_program_larger():
    """No plan fits but one with all ties, which is not compiled before the others."""
    tied_of: list[bool] = []

    def compiled(step):
        found = compile_for("cpu", step)
        count = str(jax.make_jaxpr(step.function)(*step.arguments)).count("optimization_barrier")
        every = count > EVERY
        tied_of.append(every)
        factor = 0.5 if every else 10 + count
        return replace(found, peak_bytes=int(factor * found.peak_bytes))

    function = planned_function().with_options(gap=0.1)
    step = function.traced(STATE, BATCH)
    tools = Tools(function.settings, begins(compiled))
    plan = planner_named("joint").plan(step, free().compiled.peak_bytes, tools)
    assert plan.fits and plan.execution.tied_steps is None
    assert tied_of[-1] and not any(tied_of[:-1])


def test_xla_cpu_gets_a_barrier_at_every_step():
    plan = planned_function().with_options(profile=ON_CPU, verify="cpu").plan(STATE, BATCH)
    assert plan.execution.tied_steps is None and plan.rounds[0].is_tied


def test_a_compiler_that_was_not_planned_for_gets_barriers_of_its_own():
    unchecked = planned_function().plan(STATE, BATCH)
    assert unchecked.execution.tied_steps is None
    plan = with_needed_barriers(unchecked)
    assert plan.step_for(GPU) is plan.step
    count = [
        str(jax.make_jaxpr(s.function)(*s.arguments)).count("optimization_barrier")
        for s in (plan.step, plan.step_for(CPU))
    ]
    assert count[0] == 0 < count[1]


def test_a_plan_is_lowered_for_any_devices():
    plan = planned_function().plan(STATE, BATCH)
    lowered = plan.lower(jax.devices())
    compiled = lowered.compile()
    assert compile_for("cpu", plan.step_for(CPU)).temporary_bytes == (
        compiled.memory_analysis().temp_size_in_bytes
    )
    with pytest.raises(kiwi.errors.NotEnoughDevicesError):
        plan.lower(jax.devices()[:4])


def test_tied_steps_are_kept_in_files(tmp_path):
    function = planned_function()
    plan = function.plan(STATE, BATCH)
    some = with_tied_steps(plan, frozenset({3, 5}))
    for each in (plan, some):
        each.save(tmp_path / "plan.json")
        saved = kiwi.load_plan(tmp_path / "plan.json")
        again = saved.apply(mlp.make_train_step(CONFIG)).plan(STATE, BATCH)
        assert again.execution.tied_steps == each.execution.tied_steps
        assert again.estimate.memory_bytes == each.estimate.memory_bytes


def test_maps_that_their_readers_compute_again_take_no_memory():
    """The tanh of a GELU, on XLA:GPU; XLA:CPU computes it once."""
    gpu = planned_function().plan(STATE, BATCH)
    cpu = planned_function().with_options(profile=ON_CPU, verify="cpu").plan(STATE, BATCH)
    assert "tanh" not in {decision.opcode for decision in gpu.decisions}
    tanh = {k for k, decision in enumerate(cpu.decisions) if decision.opcode == "tanh"}
    assert tanh and tanh <= {b.index for b in cpu.estimate.buffers if b.kind == "result"}
    assert gpu.estimate.peak_bytes < cpu.estimate.peak_bytes
