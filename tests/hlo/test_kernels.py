"""Functions with a sharding rule: planned as one operator, computed on shards, differentiated."""

import functools
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.gpu import attention as gpu_attention
from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel,
    splash_attention_mask,
)

import kiwi
from kiwi.errors import CompileCheckError, InvalidArgumentError
from kiwi.hlo import jax_internals
from kiwi.hlo.known_kernels import registry as kernel_registry

BATCH, LENGTH, HEADS, GROUPS, WIDTH = 8, 64, 8, 2, 16
GROUPED = "b s (k g) d, b t k d, b t k d -> b s (k g) d"


def attention(q: jax.Array, k: jax.Array, v: jax.Array, *, scale: float = 1.0) -> jax.Array:
    """Causal attention with grouped queries, in plain jax."""
    grouped = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[3])
    scores = scale * jnp.einsum("bskgd,btkd->bkgst", grouped, k)
    causal = jnp.tril(jnp.ones((q.shape[1], k.shape[1]), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
    return jnp.einsum("bkgst,btkd->bskgd", weights, v).reshape(q.shape)


def ruled(fun: Any = attention, rule: str | None = GROUPED, **options: Any) -> Any:
    return kiwi.sharding_rule(fun, rule, need_replication_factors=("s", "t", "d"), **options)


def step_of(attend: Any, layout: str = "bthd") -> Any:
    """Returns a step of one layer. `layout`: the order of dimensions of queries, keys and
    values."""

    def step(params: Any, x: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            q, k, v = (jnp.einsum(f"btm,mhd->{layout}", x, params[n]) for n in "qkv")
            found = jnp.einsum(f"{layout},hdm->btm", attend(q, k, v), params["o"])
            return jnp.mean(found.astype(jnp.float32) ** 2)

        return jax.value_and_grad(loss)(params)

    return step


def arguments(
    batch: int = BATCH,
    length: int = LENGTH,
    heads: int = HEADS,
    kv_heads: int = HEADS // GROUPS,
    width: int = WIDTH,
    dtype: Any = jnp.float32,
) -> Any:
    """Returns the types of a layer's parameters and batch."""
    shapes = {"q": heads, "k": kv_heads, "v": kv_heads}
    params = {n: jax.ShapeDtypeStruct((32, h, width), dtype) for n, h in shapes.items()}
    params["o"] = jax.ShapeDtypeStruct((heads, width, 32), dtype)
    return params, jax.ShapeDtypeStruct((batch, length, 32), dtype)


def filled(types: Any) -> Any:
    keys = iter(jax.random.split(jax.random.key(0), 9))
    return jax.tree.map(lambda t: 0.3 * jax.random.normal(next(keys), t.shape, t.dtype), types)


def kernels(plan: kiwi.Plan) -> list[Any]:
    return [d for d in plan.decisions if d.opcode == "custom_call"]


def pinned(attend: Any, *, batch_axes: Any, head_axes: Any) -> Any:
    """Returns the step with queries sharded by batch and heads."""
    spec = jax.sharding.PartitionSpec(batch_axes, None, head_axes, None)
    return lambda q, k, v: kiwi.hint(attend(kiwi.hint(q, sharding=spec), k, v), sharding=spec)


def assert_close(found: Any, expected: Any) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5), found, expected
    )


@pytest.mark.parametrize("axes", [("x", "y"), (("x", "y"), None)])
def test_shards_compute_what_the_whole_does(axes):
    args = filled(arguments())
    attend = pinned(ruled(), batch_axes=axes[0], head_axes=axes[1])
    planned = kiwi.jit(step_of(attend), mesh_shape=(2, 4), memory_budget="1GiB")
    forward, backward = kernels(planned.plan(*args))
    assert forward.phase == "forward" and backward.phase == "backward"
    layout = jax.sharding.PartitionSpec(axes[0], None, axes[1], None)
    assert forward.sharding == backward.sharding == layout
    assert_close(planned(*args), step_of(attention)(*args))


def test_it_computes_the_same_without_a_plan_under_transformations():
    args = filled(arguments())
    plain, own = step_of(attention), step_of(ruled())
    assert_close(jax.jit(own)(*args), plain(*args))
    many = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), args)
    assert_close(jax.vmap(own)(*many), jax.vmap(plain)(*many))


def test_layers_in_a_scan_share_their_kernel():
    def stacked(attend: Any) -> Any:
        def step(params: Any, x: jax.Array) -> Any:
            def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
                q, k, v = (jnp.einsum("btm,mhd->bthd", x, w[n]) for n in "qkv")
                return x + jnp.einsum("bthd,hdm->btm", attend(q, k, v, scale=0.5), w["o"]), None

            loss = lambda p: jnp.mean(jax.lax.scan(layer, x, p)[0] ** 2)  # noqa: E731
            return jax.value_and_grad(loss)(params)

        return step

    params, x = filled(arguments())
    params = jax.tree.map(lambda w: jnp.stack([w, w / 2, w / 3]), params)
    planned = kiwi.jit(stacked(ruled()), mesh_shape=(2, 4), memory_budget="1GiB")
    assert_close(planned(params, x), stacked(attention)(params, x))
    assert [d.trips for d in kernels(planned.plan(params, x))] == [3, 3]


def test_a_pallas_kernel_runs_on_shards():
    """In its interpreter, on virtual CPU devices."""
    mha = functools.partial(
        gpu_attention.mha, segment_ids=None, interpret=True, sm_scale=1.0, causal=True
    )
    rule = "b s h d, b t h d, b t h d -> b s h d"
    args = filled(arguments(length=128, kv_heads=HEADS))
    attend = pinned(ruled(mha, rule), batch_axes="x", head_axes="y")
    planned = kiwi.jit(step_of(attend), mesh_shape=(2, 4), memory_budget="1GiB", verify=None)
    assert_close(planned(*args), step_of(attention)(*args))


def _splash(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
    heads, length = q.shape[1:3]
    causal = splash_attention_mask.CausalMask((length, length))
    mask = splash_attention_mask.MultiHeadMask([causal] * heads)
    kernel = splash_attention_kernel.make_splash_mha(mask, head_shards=1, q_seq_shards=1)
    return jax.vmap(kernel)(q, k, v)


_cudnn = functools.partial(jax.nn.dot_product_attention, implementation="cudnn", is_causal=True)

OF_LIBRARIES = {
    "flash": ("tpu", "bhtd", kiwi.sharding_rule(flash_attention), 3),
    "splash": ("tpu", "bhtd", ruled(_splash, "b h s d, b h t d, b h t d -> b h s d"), 3),
    "mha": (
        "cuda",
        "bthd",
        functools.partial(kiwi.sharding_rule(gpu_attention.mha), segment_ids=None),
        3,
    ),
    "cudnn": ("cuda", "bthd", kiwi.sharding_rule(_cudnn), 2),
}
"""For each kernel: its devices, its layout, its function, and the number of kernels in a step. A
step runs one forward kernel. On TPUs it runs two backward kernels, for the gradients of queries and
of keys and values."""


@pytest.mark.parametrize("name", OF_LIBRARIES)
def test_attention_of_libraries_is_planned_and_lowered_for_its_platform(name):
    """On a machine without the devices; the scores are never in memory."""
    platform, layout, attend, calls = OF_LIBRARIES[name]
    args = arguments(16, 1024, 8, 8, 128, jnp.bfloat16)
    plan = kiwi.plan(
        step_of(attend, layout), *args, mesh_shape=(2, 4), profile="h100-sxm", verify=None
    )
    forward, backward = kernels(plan)
    scores_bytes = 16 * 8 * 1024 * 1024 * 2
    assert plan.estimate.peak_bytes < scores_bytes / 2
    assert max(forward.bytes, backward.bytes) < scores_bytes / 16
    mixed_bytes = 16 * 1024 * 8 * 128 * 2 / plan.mesh.size
    assert forward.bytes < 1.5 * mixed_bytes  # once, though the gradient reads it, too
    share = 0.5 if name == "cudnn" else 1.0  # causal
    for kernel, matmuls in ((forward, 2), (backward, 5)):
        assert kernel.sharding != jax.sharding.PartitionSpec(None, None, None, None)
        least = share * matmuls * 2 * 16 * 8 * 1024**2 * 128 / plan.mesh.size / 989e12
        assert least < kernel.seconds < 5 * least
    assert plan.step.exported(platform)
    program = plan.execution.units.graph.program
    assert sum(equation.kernel_calls for equation in program.equations) == calls


@pytest.mark.skipif(find_spec("libtpu") is None, reason="the extra aot-tpu is not installed")
@pytest.mark.parametrize("name", ["splash"])
def test_kernels_take_their_time_in_the_schedule_that_xla_tpu_compiles(name):
    """XLA breaks the lines of some; of two that a unit runs each takes its half."""
    _, layout, attend, calls = OF_LIBRARIES[name]
    args = arguments(16, 1024, 8, 8, 128, jnp.bfloat16)
    step = step_of(attend, layout)
    plan = kiwi.plan(step, *args, mesh_shape=(2, 4), profile="v5e", verify="tpu")
    forward, backward = kernels(plan)
    time = plan.compiled.time
    assert time.unpriced_kernels == 0
    seconds = forward.seconds + backward.seconds
    assert seconds < time.compute_seconds
    assert time.compute_seconds == pytest.approx(plan.estimate.compute_seconds, rel=0.2)
    of_each = plan.step.kernel_seconds.values()
    whole_seconds = forward.seconds + backward.seconds / (calls - 1)
    # Less what their functions move beside them, which the schedule has anyway.
    assert 0.75 * whole_seconds < sum(of_each) < whole_seconds


def test_cudnn_is_traced_with_jax_s_plugin_and_without_the_library(monkeypatch):
    def missing():
        raise RuntimeError("cuDNN not found.")

    monkeypatch.setattr(jax_internals.fused_attention_stablehlo, "check_cudnn_version", missing)
    x = jax.ShapeDtypeStruct((4, 256, 8, 64), jnp.bfloat16)
    assert jax.eval_shape(kiwi.sharding_rule(_cudnn), x, x, x).shape == x.shape
    assert jax_internals.fused_attention_stablehlo.check_cudnn_version is missing


@pytest.mark.parametrize("attend", [gpu_attention.mha, _cudnn], ids=["mha", "cudnn"])
def test_a_kernel_without_a_rule_runs_whole_on_each_device(attend, monkeypatch):
    monkeypatch.setattr(kernel_registry, "_ENTRIES", {})
    keywords = {} if attend is _cudnn else {"segment_ids": None}
    step = step_of(functools.partial(attend, **keywords))
    args = arguments(16, 1024, 8, 8, 128, jnp.bfloat16)
    plan = kiwi.plan(step, *args, mesh_shape=(2, 4), profile="h100-sxm", verify=None)
    assert "Without a sharding rule, replicated and kept" in plan.notes[0].text
    assert plan.step.exported("cuda")


def test_a_check_by_another_devices_compiler_says_what_to_do():
    args = arguments(16, 1024, 8, 8, 128, jnp.bfloat16)
    step = step_of(kiwi.sharding_rule(flash_attention), "bhtd")
    with pytest.raises(CompileCheckError, match=r"lowered for cpu(?s:.*)Set verify="):
        kiwi.plan(step, *args, mesh_shape=(2, 4), verify="cpu")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("b s k d", "has no sharding rule"),
        ("b s h d, b t h d -> b s h d", "has 2 operands"),
        ("b s h, b t h d, b t h d -> b s h d", "3 dimensions"),
        ("b s h d, b t h d, b t h d -> b s h d", "does not fit"),
    ],
)
def test_a_rule_that_does_not_fit_is_refused(rule, message):
    with pytest.raises(InvalidArgumentError, match=message):
        kiwi.plan(step_of(ruled(rule=rule)), *arguments(), mesh_shape=(2, 4), verify=None)


def test_a_saved_plan_runs(tmp_path):
    args = filled(arguments())
    step = step_of(pinned(ruled(), batch_axes="x", head_axes="y"))
    plan = kiwi.plan(step, *args, mesh_shape=(2, 4), memory_budget="1GiB", verify=None)
    plan.save(tmp_path / "plan.json")
    loaded = kiwi.load_plan(tmp_path / "plan.json").apply(step)
    assert_close(loaded(*args), step_of(attention)(*args))


def test_what_a_result_lacks_stays_whole_and_gradients_are_never_partial():
    """A scale that all of the batch reads: its gradient is a sum over the batch."""

    def scaled(x: jax.Array, scale: jax.Array) -> jax.Array:
        return jnp.tanh(x) * scale

    own = kiwi.sharding_rule(scaled, "b d, d -> b d")
    step = lambda f: jax.value_and_grad(lambda s, x: jnp.mean(f(x, s) ** 2))  # noqa: E731
    scale, x = jnp.arange(8.0), jax.random.normal(jax.random.key(1), (64, 8))
    planned = kiwi.jit(
        step(own),
        mesh_shape=(8,),
        memory_budget="1GiB",
        in_shardings=(None, jax.sharding.PartitionSpec("x")),
    )
    forward, backward = kernels(planned.plan(scale, x))
    assert forward.phase == "forward"
    assert backward.sharding[0] is None
    assert_close(planned(scale, x), step(scaled)(scale, x))
