"""A plan for H100s is the same with XLA:GPU's wheel, without it, and with XLA:CPU's check.

The decisions are recorded beside this test. An environment with the wheel and an environment
without it must both reproduce the record, with every check that they have.

If XLA:GPU's program is over the budget, plans with the wheel continue from there, which no other
environment can reproduce. The record then holds the solutions before that program. If the program
teaches prices, the decisions are compared, and the predicted time is not.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import pytest

import kiwi
from kiwi.corrections import NO_CORRECTIONS
from kiwi.errors import CompilerUnavailableError
from kiwi.mesh import hardware
from kiwi.xla.gpu import compiler as gpu_compiler
from kiwi.xla.gpu.compiler import GPU
from tests.helpers.planning import array

pytestmark = pytest.mark.usefixtures("cublas_is_lent_its_workspace")

LAYERS, WIDTH, ROWS = 2, 1024, 16384
SHARES = {"free": None, "tight": 0.7}
"""Budgets, as shares of the peak of the free plan."""


def step(state, x):
    """SGD with momentum on blocks with a residual connection, in bfloat16.

    XLA:CPU moves bfloat16 as float32 and does not scatter sums: its rules lead to other plans.
    """
    weights, momentum = state

    def loss(weights):
        hidden = x
        for up, down in weights:
            hidden = hidden + jax.nn.gelu(hidden @ up) @ down
        return jnp.mean(hidden.astype("float32") ** 2)

    gradient = jax.grad(loss)(weights)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g.astype("float32"), momentum, gradient)
    return jax.tree.map(lambda w, m: w - (0.1 * m).astype(w.dtype), weights, momentum), momentum


def arguments():
    shapes = [((WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH))] * LAYERS
    weights, momentum = (
        [tuple(array(*shape, dtype=dtype) for shape in pair) for pair in shapes]
        for dtype in ("bfloat16", "float32")
    )
    return (weights, momentum), array(ROWS, WIDTH, dtype="bfloat16")


def planned(verify, budget_bytes=None):
    return kiwi.plan(
        step,
        *arguments(),
        mesh_shape=(2, 4),
        profile="h100-sxm",
        verify=verify,
        memory_budget=budget_bytes,
        effort="quick",
        donate_argnums=0,
        plan_cache=False,
    )


def predicted(plan):
    """Returns the time and the peak that the rules of the target predict for a plan."""
    estimate = plan.estimate
    return f"{estimate.step_seconds * 1e6:.3f} us, {estimate.peak_bytes} bytes\n"


def described(plan):
    """Yields the decisions of a plan."""
    yield ", ".join(f"{use.kind} {use.axes} x{use.count} {use.bytes}" for use in _uses(plan))
    yield f"copies kept {sorted(plan.execution.kept_copies)}"
    yield f"schedule {list(plan.execution.schedule.steps)}"
    yield f"arguments {jax.tree.leaves(plan.in_shardings, is_leaf=_is_spec)}"
    yield f"results {jax.tree.leaves(plan.out_shardings, is_leaf=_is_spec)}"
    for decision in plan.decisions:
        shape = ",".join(map(str, decision.shape))
        yield f"{decision.opcode}[{shape}] {decision.sharding} {decision.residency}"


def _uses(plan):
    return sorted(plan.estimate.collective_uses, key=str)


def _is_spec(leaf):
    return isinstance(leaf, jax.sharding.PartitionSpec)


@functools.cache
def free_peak_bytes():
    return planned(None).peak_bytes


def use_no_wheel(monkeypatch):
    """Hides XLA:GPU's compiler."""
    monkeypatch.setattr(gpu_compiler, "find_spec", lambda name: None, raising=False)
    monkeypatch.setattr(gpu_compiler, "PLUGINS", ("jax-no-plugin",), raising=False)


def use_the_wheel(monkeypatch):
    """Skips the test where XLA:GPU's compiler is not installed."""
    try:
        GPU.check_available(hardware("h100-sxm"))
    except CompilerUnavailableError as error:
        pytest.skip(str(error))


CHECKS = {
    "with the wheel": ("auto", use_the_wheel, "cuda"),
    "without the wheel": ("auto", use_no_wheel, "cpu"),
    "with XLA:CPU's check": ("cpu", lambda _: None, "cpu"),
    "without a check": (None, lambda _: None, None),
}


def plan_by(check, budget, monkeypatch):
    """The plan of a row of `CHECKS`, which has been compiled as the row says."""
    verify, prepare, compiled_by = CHECKS[check]
    prepare(monkeypatch)
    share = SHARES[budget]
    plan = planned(verify, share and int(share * free_peak_bytes()))
    assert plan.fits
    programs = plan.compiled, plan.cross_check and plan.cross_check.program
    assert [each.target for each in programs if each] == [compiled_by] * (compiled_by is not None)
    return plan


ANSWERS = [(c, b) for c in CHECKS for b in SHARES if (c, b) != ("with the wheel", "tight")]
"""With the wheel, the first program under the tight budget is over the budget."""


@pytest.mark.parametrize(("check", "budget"), ANSWERS)
def test_decisions_are_the_recorded_ones(check, budget, check_golden, monkeypatch):
    plan = plan_by(check, budget, monkeypatch)
    check_golden(f"h100_decisions_{budget}.txt", "\n".join(described(plan)) + "\n")
    if plan.corrections == NO_CORRECTIONS:  # Prices are those that all environments know.
        check_golden(f"h100_predicted_{budget}.txt", predicted(plan))


def before_the_first_program(plan):
    """Yields the solutions before the first program, with their work."""
    solutions = itertools.takewhile(lambda trial: trial.work, plan.history)
    for trial in solutions:
        limit, peak, seconds = (
            trial.limit_bytes,
            trial.predicted_peak_bytes,
            trial.predicted_seconds,
        )
        yield f"{trial.within} {trial.attempt}: {limit}, {peak}, {seconds}, work {trial.work}"


@pytest.mark.parametrize("check", CHECKS)
def test_solutions_before_a_program_are_the_recorded_ones(check, check_golden, monkeypatch):
    plan = plan_by(check, "tight", monkeypatch)
    check_golden("h100_solutions_tight.txt", "\n".join(before_the_first_program(plan)) + "\n")
