"""The values that a step reads through a barrier, and the operands that tie it to earlier steps."""

import jax
import jax.numpy as jnp
import pytest

from kiwi.emit.barriers import SLACK, Barrier, barriers
from kiwi.emit.execution import build_execution
from kiwi.emit.interpreter import emit
from kiwi.problem.solved import Solved
from kiwi.xla.cpu.compiler import CPU_COMPILER_OPTIONS
from tests.helpers.planning import array, problem_of, units_of


def chain(w, x):
    """Five matmuls in a row, and one more that reads the result of the first."""
    values = [x @ w]
    for _ in range(4):
        values.append(values[-1] @ w)
    return values[-1] @ values[0]


def execution_of(function, *args, donated=()):
    units = units_of(function, *args, donated=donated)
    planning = problem_of(units, (1, 1))
    return build_execution(Solved(planning, [0] * len(planning.problem.nodes)))


@pytest.fixture(scope="module")
def chained():
    return execution_of(chain, array(8, 8), array(8, 8))


def result_of(execution, step):
    (value,) = execution.units.units[execution.schedule.steps[step]].outputs
    return value


def test_the_first_steps_have_no_fence(chained):
    assert barriers(chained).steps[: 1 + SLACK] == (Barrier((), ()),) * (1 + SLACK)


def test_what_a_neighbour_yields_is_read_as_it_is(chained):
    for step, barrier in enumerate(barriers(chained).steps[2:5], start=2):
        assert result_of(chained, step - 1) not in barrier.values


def test_arguments_and_older_values_are_read_behind_the_barrier(chained):
    weights = chained.units.graph.program.arguments[0]
    assert weights in barriers(chained).steps[3].values
    assert result_of(chained, 0) in barriers(chained).steps[5].values


def test_a_trigger_is_still_to_be_read(chained):
    steps = chained.schedule.steps
    for step, barrier in enumerate(barriers(chained).steps):
        later = {v for s in steps[step:] for v in chained.units.units[s].reads}
        assert set(barrier.triggers) <= later
        assert not set(barrier.triggers) & set(barrier.values)


def test_tuples_of_pointers_are_held_and_single_values_are_none(chained):
    assert [Barrier(tuple(range(n))).pointer_bytes for n in (0, 1, 2, 8, 9)] == [0, 0, 64, 64, 128]
    assert Barrier((1,), (2,)).pointer_bytes == 64
    steps = barriers(chained).steps
    assert barriers(chained).pointer_bytes == sum(barrier.pointer_bytes for barrier in steps) > 0


def test_a_step_without_anything_older_to_wait_for_has_no_barrier():
    two = execution_of(lambda x: (x @ x) @ x, array(8, 8))
    assert all(not barrier.values for barrier in barriers(two).steps)


def normalised(w, x):
    """The product has three readers. The last is an elementwise operator, which follows the mean
    and the variance."""
    y = x @ w
    mean = y.mean(0)
    variance = jnp.square(y - mean).mean(0)
    return jnp.tanh((y - mean) * variance) @ w


def test_what_a_library_call_yields_may_be_written_over_by_its_last_reader():
    execution = execution_of(normalised, array(8, 8), array(64, 8))
    product, _, variance, tanh, _ = range(len(execution.schedule.steps))
    barrier = barriers(execution).steps
    assert result_of(execution, product) in barrier[variance].values
    assert result_of(execution, product) not in (*barrier[tanh].values, *barrier[tanh].triggers)
    assert barrier[tanh].values, "its other operands tie the step"
    compiled = jax.jit(emit(execution), compiler_options=CPU_COMPILER_OPTIONS)
    memory = compiled.lower(array(8, 8), array(64, 8)).compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 2 * 64 * 8 * 4


def test_an_update_waits_for_its_neighbour_that_reads_the_argument():
    """Without a tie XLA copies the donated argument at the start of the step."""

    def step(w, x):
        y = x @ w
        z = jnp.sin(y) @ w
        return w - z.T @ y, z

    args = array(64, 64), array(64, 64)
    execution = execution_of(step, *args, donated=(0,))
    donated = jax.jit(emit(execution), donate_argnums=0, compiler_options=CPU_COMPILER_OPTIONS)
    text = donated.lower(*args).compile().as_text()
    entry = text[text.index("ENTRY") :]
    assert " copy(" not in entry


def scores_gradient(g, q, k):
    """Both products read the scaled gradient of the scores, as in attention."""
    scaled = jnp.where(g > 0, g * jnp.sin(g), 0.0) * 0.125
    return jnp.einsum("hqs,hsd->hqd", scaled, k), jnp.einsum("hqs,hqd->hsd", scaled, q)


def test_a_matmul_reads_what_is_scaled_behind_the_barrier_if_others_read_it_later():
    shapes = array(4, 64, 64), array(4, 64, 16), array(4, 64, 16)
    execution = execution_of(lambda g, q, k: scores_gradient(jnp.tanh(g), q, k), *shapes)
    graph, steps = execution.units.graph, execution.schedule.steps
    opcodes = [graph.opcode_of(execution.units.units[u].root) for u in steps]
    scaled = opcodes.index("multiply")
    first, second = (barriers(execution).steps[scaled + k] for k in (1, 2))
    assert result_of(execution, scaled) in first.values
    assert result_of(execution, scaled) in second.values
