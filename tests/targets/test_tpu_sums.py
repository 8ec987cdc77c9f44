"""Rules of XLA:TPU against compiled programs."""

import jax
import jax.numpy as jnp
import pytest

from examples import gpt, mlp
from kiwi.hlo.graph import Phase
from kiwi.targets.rules.tpu.tpu_sums_behind import sums_behind
from tests.xla.tpu.test_buffers import array, needs_compiler, planned


@needs_compiler
def test_the_gradient_of_take_along_axis_has_no_buffer():
    def loss(w: jax.Array, x: jax.Array, tokens: jax.Array) -> jax.Array:
        logits = x @ w
        chosen = jnp.take_along_axis(logits, tokens[:, None], -1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)

    tokens = jax.ShapeDtypeStruct((8192,), "int32")
    found = planned(jax.grad(loss), array(512, 4096), array(8192, 512), tokens)
    assert "scatter-add" not in {decision.opcode for decision in found.decisions}
    assert found.compiled is not None
    assert found.estimate.peak_bytes == pytest.approx(found.compiled.peak_bytes, rel=0.08)


@needs_compiler
def test_a_transformer_on_one_device_is_predicted():
    """Its matmuls compute the softmax's gradient, biases' gradients leave what they sum narrow, and
    nothing is copied to another order."""
    config = gpt.GptConfig(layers=2, width=512, heads=8, vocabulary=2048, sequence=256, batch=16)
    state, batch = gpt.abstract_state(config), gpt.abstract_batch(config)
    found = planned(gpt.make_train_step(config), state, batch, donate_argnums=0)
    assert found.compiled is not None
    assert found.estimate.peak_bytes == pytest.approx(found.compiled.peak_bytes, rel=0.08)


def test_a_gradient_is_scattered_behind_the_next_product():
    config = mlp.MlpConfig(layers=2, width=128, batch=64, optimizer="adam")
    state, batch = mlp.abstract_state(config), mlp.abstract_batch(config)
    step = mlp.make_train_step(config)
    units = planned(step, state, batch, mesh_shape=(2, 4), verify=None).execution.units
    products = [
        unit
        for unit in units.units
        if unit.phase is Phase.BACKWARD and "dot_general" in units.graph.opcodes[unit.root]
    ]
    assert products
    for unit in products:
        behind = sums_behind(units, unit)
        if behind is not None:
            other = units.units[behind]
            assert other.phase is not Phase.UPDATE
            assert set(unit.outputs).isdisjoint(other.reads)
    assert any(sums_behind(units, unit) is not None for unit in products)
    assert all(sums_behind(units, u) is None for u in units.units if u not in products)


@needs_compiler
def test_an_all_reduced_gradient_is_held_through_the_next_product():
    """XLA:TPU does not reduce-scatter over a slice of three dimensions."""
    config = mlp.MlpConfig(layers=4, width=512, batch=8192, optimizer="adam")
    state, batch = mlp.abstract_state(config), mlp.abstract_batch(config)
    options = {"mesh_shape": (2, 2, 2), "profile": "v5p", "donate_argnums": 0}
    found = planned(mlp.make_train_step(config), state, batch, **options)
    units = found.execution.units
    reduced = {
        unit.index: sums_behind(units, unit)
        for unit, decision in zip(units.units, found.decisions, strict=True)
        if decision.costs.seconds["communication"] > 0
    }
    held = {b.index: b.end for b in found.estimate.buffers if b.kind == "result"}
    pairs = [(held[unit], behind) for unit, behind in reduced.items() if behind is not None]
    assert pairs and all(end > behind for end, behind in pairs)
    assert found.compiled is not None
    assert found.estimate.peak_bytes == pytest.approx(found.compiled.peak_bytes, rel=0.08)
