"""The copies that XLA:TPU makes of donated arguments whose results are gathered."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

import kiwi
from kiwi.problem.edges import resharding_table
from tests.xla.tpu.test_buffers import array, needs_compiler, planned


def step_of(equation: str) -> Any:
    """Returns a step with two moments for a matmul with one parameter."""

    def step(state: tuple[jax.Array, jax.Array, jax.Array], x: jax.Array) -> Any:
        loss = lambda w: jnp.mean(jnp.sin(jnp.einsum(equation, x, w)))  # noqa: E731
        gradient = jax.grad(loss)(state[0])
        first, second = 0.9 * state[1] + gradient, 0.99 * state[2] + gradient**2
        return state[0] - 0.1 * first / (1.0 + second), first, second

    return step


def plan_of(equation: str, shape: tuple[int, ...]) -> kiwi.Plan:
    """Returns a data-parallel plan with sharded moments, in which the new parameter is gathered."""
    return planned(
        step_of(equation),
        (array(*shape),) * 3,
        array(16384, shape[0]),
        mesh_shape=(8,),
        axis_names=("x",),
        donate_argnums=0,
        in_shardings=((PartitionSpec(), *[PartitionSpec("x")] * 2), PartitionSpec("x")),
    )


@needs_compiler
@pytest.mark.parametrize(
    ("equation", "shape"), [("bd,dk->bk", (1024, 2048)), ("bd,dhk->bhk", (1024, 16, 64))]
)
def test_the_argument_that_a_gathered_result_replaces_is_copied(
    equation: str, shape: tuple[int, ...]
):
    """The gradient of a product lies in the order of its parameter, and nothing else is copied."""
    found = plan_of(equation, shape)
    units = found.execution.units
    (value, *_) = units.graph.program.results
    assert isinstance(value, int)
    argument = units.aliased_results[value]
    assert found.execution.layouts[value] != found.execution.layouts[argument]  # It is gathered.
    assert found.compiled is not None and found.compiled.memory is not None
    size = units.graph.program.values[value].size_bytes
    early = [b for b in found.estimate.buffers if b.kind == "copy" and b.start == 0]
    assert [b.bytes for b in early] == [size]
    copies = [b.bytes for b in found.compiled.memory.at_peak if b.opcode == "copy"]
    assert copies == [size]
    # Both copies take time, behind that of the gather.
    hardware, layouts = found.mesh.hardware, found.execution.layouts
    moved, rules = units.graph.program.values[value], found.execution.facts
    gather = resharding_table(found.mesh, rules, moved)
    copied = 2 * size / hardware.sustained_memory_bytes_per_second + hardware.kernel_launch_seconds
    assert found.estimate.resharding_seconds == pytest.approx(
        gather.seconds(layouts[value], layouts[argument]) + 2 * copied
    )
