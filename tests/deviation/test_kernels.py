"""The kernels that deviate: the rows add up to the difference between estimate and compiled
program."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import kiwi
from kiwi.cli.main import main
from kiwi.deviation import Deviation, deviation
from kiwi.deviation.kernels import COMPUTE, MEMORY
from kiwi.deviation.measured import Measured
from kiwi.errors import InvalidArgumentError
from kiwi.plans.deviations import KernelDeviation, worst_memory_text
from kiwi.plans.memory_report import predicted_by_owner, unit_at_peak
from kiwi.plans.peak_deviations import AHEAD, LONGER, NOT_HELD
from tests.helpers.on_cpu import ON_CPU

MIB = 2.0**20

FILE = """
import jax
import jax.numpy as jnp
from tests.helpers.on_cpu import ON_CPU


def loss(w, x):
    for layer in w:
        x = jax.nn.softmax(jnp.tanh(x @ layer))
    return jnp.mean(x ** 2)


def step(w, x):
    value, gradients = jax.value_and_grad(loss)(w, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, gradients), value


def make_args():
    weights = [jax.ShapeDtypeStruct((64, 64), "float32")] * 3
    return weights, jax.ShapeDtypeStruct((512, 64), "float32")
"""


def step(w: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    def loss(w: list[jax.Array]) -> jax.Array:
        found = x
        for layer in w:
            found = jax.nn.softmax(jnp.tanh(found @ layer))
        return jnp.mean(found**2)

    return [p - 0.1 * g for p, g in zip(w, jax.grad(loss)(w), strict=True)]


@pytest.fixture(scope="module")
def plan() -> kiwi.Plan:
    weights = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 3
    examples = jax.ShapeDtypeStruct((512, 64), jnp.float32)
    return kiwi.plan(
        step, weights, examples, mesh_shape=(2, 4), profile=ON_CPU, verify="cpu", effort="quick"
    )


@pytest.fixture(scope="module")
def told(plan: kiwi.Plan) -> Deviation:
    return deviation(plan)


def test_both_sides_are_the_plans(plan: kiwi.Plan, told: Deviation):
    assert plan.compiled is not None
    assert told.predicted_peak_bytes == plan.estimate.peak_bytes
    assert told.compiled_peak_bytes == plan.compiled.peak_bytes
    assert told.predicted_step_seconds == plan.estimate.step_seconds
    assert told.compiled_step_seconds == plan.compiled.step_seconds
    assert told.peak_ratio == plan.estimate.peak_bytes / plan.compiled.peak_bytes


def test_buffers_of_one_side_have_a_cause(plan: kiwi.Plan, told: Deviation):
    assert plan.compiled is not None and plan.compiled.memory is not None
    peak_unit = unit_at_peak(plan.compiled.memory)
    causes = {row: row.cause for row in told.of(MEMORY) if row.units}
    assert causes
    for row, cause in causes.items():
        is_one_sided = not row.compiled or not row.predicted
        assert bool(cause) == is_one_sided
        if cause == AHEAD:
            assert not row.predicted and min(row.units) > peak_unit
        elif cause == LONGER:
            assert not row.predicted and max(row.units) <= peak_unit


def test_another_peak_than_planned_names_its_buffers(plan: kiwi.Plan):
    rows = [
        KernelDeviation(MEMORY, 0.0, 4 * MIB, "dot (forward)", "a/b.py:3 (f)", cause=AHEAD),
        KernelDeviation(MEMORY, 6 * MIB, 0.0, "exp (forward)", "a/b.py:5 (f)", cause=NOT_HELD),
        KernelDeviation(COMPUTE, 0.0, 9e9, "sort (forward)"),
    ]
    assert worst_memory_text(rows, 1 * MIB) == (
        "dot (forward) of b.py:3 (f) 4.00 MiB for 0 B, ahead of its turn"
    )
    assert worst_memory_text(rows, -1 * MIB) == (
        "exp (forward) of b.py:5 (f) 0 B for 6.00 MiB, not held"
    )
    assert plan.compiled is not None
    larger = replace(plan.compiled, peak_bytes=2 * plan.estimate.peak_bytes)
    shown = str(replace(plan, compiled=larger, deviations=tuple(rows)))
    assert "at the compiled peak, compiled for planned: dot (forward) of b.py:3" in shown
    same = replace(plan.compiled, peak_bytes=plan.estimate.peak_bytes)
    assert "at the compiled peak" not in str(replace(plan, compiled=same, deviations=tuple(rows)))


def test_rows_of_memory_add_up(plan: kiwi.Plan, told: Deviation):
    assert plan.compiled is not None and plan.compiled.memory is not None
    memory = plan.compiled.memory
    held = sum(predicted_by_owner(plan, unit_at_peak(memory)).values())
    compiled = sum(b.bytes for b in memory.at_peak) + memory.fragmentation_bytes
    rows = told.of(MEMORY)
    assert sum(row.excess for row in rows) == pytest.approx(held - compiled)
    assert all(row.predicted != row.compiled for row in rows)


def test_rows_of_computation_add_up(plan: kiwi.Plan, told: Deviation):
    assert plan.compiled is not None and plan.compiled.time is not None
    estimate = sum(decision.priced.computing_seconds for decision in plan.decisions)
    difference = estimate - plan.compiled.time.compute_seconds
    assert sum(row.excess for row in told.of(COMPUTE)) == pytest.approx(difference, abs=1e-12)


def test_units_of_equal_layers_are_one_row(plan: kiwi.Plan, told: Deviation):
    rows = [row for row in told.kernels if row.units]
    assert max(len(row.units) for row in rows) >= 3
    for row in rows:
        decisions = [plan.decisions[unit] for unit in row.units]
        assert {(d.source_line, d.shape) for d in decisions} == {(row.source_line, row.shape)}
    for what in ("memory", "compute", "communication"):
        units = [unit for row in told.of(what) for unit in row.units if "copy" not in row.name]
        assert len(units) == len(set(units))


def test_the_text_names_both_sides(told: Deviation):
    text = str(told)
    assert "estimated" in text and "compiled for cpu" in text
    assert "Memory at the compiled peak" in text and "test_kernels.py" in text


def test_an_unchecked_plan_has_nothing_to_compare_with(plan: kiwi.Plan):
    with pytest.raises(InvalidArgumentError, match="no compiled program"):
        deviation(replace(plan, compiled=None))


def test_what_is_measured_of_a_plan(plan: kiwi.Plan):
    assert plan.compiled is not None
    found = Measured.of_plan(plan)
    assert found.sides("memory") == (plan.estimate.peak_bytes, plan.compiled.peak_bytes)
    assert found.sides("collectives")[1] == plan.compiled.collective_bytes
    assert found.error("memory") == 0.0, "less than a mebibyte is no difference"


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(FILE)
    options = (
        "--mesh",
        "2,4",
        "--profile",
        "cpu",
        "--verify",
        "cpu",
        "--effort",
        "quick",
        "--plan-cache",
        "no",
    )
    assert main(("deviation", "train.py:step", *options, "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["target"] == "cpu" and found["compiled_peak_bytes"] > 0
    assert any("train.py" in kernel["source_line"] for kernel in found["kernels"])
    code = main(("deviation", "train.py:step", *options, "--reduce", "--of", "memory"))
    assert code == 4 and "agree in memory" in capsys.readouterr().err
