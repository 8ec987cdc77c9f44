"""The planner "xla" foresees what XLA makes of a program that is sharded by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import kiwi
from examples import gpt, mlp
from examples.baselines import Baseline, compile_baseline, estimate_baseline
from kiwi.hlo.program import trace
from kiwi.hlo.propagation import propagated_axes
from kiwi.mesh import DeviceMesh

MESH = DeviceMesh.create((2, 4), "h100-sxm")


def axes_of_results(function: Any, specs: list[P], *shapes: tuple[int, ...]) -> list[Any]:
    arrays = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    program = trace(lambda *leaves: [function(*leaves)], arrays)
    given = dict(zip(program.arguments, specs, strict=True))
    found = propagated_axes(program, MESH.abstract_mesh(), given, {})
    return [found[r] for r in program.results if isinstance(r, int)]


def test_shardings_propagate_as_in_xla():
    column, row = P(None, "y"), P("x", None)
    product = axes_of_results(jnp.matmul, [row, column], (8, 16), (16, 32))
    assert product == [(("x",), ("y",))]
    summed = axes_of_results(lambda x, w: (x @ w).sum(1), [row, column], (8, 16), (16, 32))
    assert summed == [(("x",),)]
    assert axes_of_results(lambda x: x.T * 2, [P("x", "y")], (8, 16)) == [(("y",), ("x",))]


@pytest.mark.parametrize("module", [mlp, gpt])
def test_collectives_of_tensor_parallelism_are_those_compiled(module: Any):
    config = module.SIZES["tiny"]
    state, batch = module.abstract_state(config), module.abstract_batch(config)
    specs = module.megatron_specs(state, "x", "y")
    hand = Baseline("megatron", module.make_train_step(config), specs)
    options: dict[str, Any] = {"mesh_shape": (2, 4)}
    predicted = estimate_baseline(hand, state, batch, profile="h100-sxm", **options)
    compiled = compile_baseline(hand, state, batch, **options)
    assert predicted.collective_uses == compiled.collective_uses


def test_nothing_is_decided_where_nothing_is_given():
    """Without a sharding every value is whole on every device."""
    config = mlp.SIZES["tiny"]
    state, batch = mlp.abstract_state(config), mlp.abstract_batch(config)
    whole = jax.tree.map(lambda _: P(), (state, batch))
    found = kiwi.plan(
        mlp.make_train_step(config),
        state,
        batch,
        mesh_shape=(2, 4),
        planner="xla",
        verify=None,
        in_shardings=whole,
    )
    assert found.estimate.collective_uses == ()
    assert found.residency_counts()["recompute"] == 0
