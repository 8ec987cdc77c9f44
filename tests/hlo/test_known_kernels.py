"""Kernels that are known by name: recognised where a step calls them, and planned by their rule."""

import functools
import logging
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas.ops.gpu import attention as gpu_attention
from jax.experimental.pallas.ops.gpu import decode_attention
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention_kernel as paged
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as splash,
)
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_mask as masks,
)
from jax.sharding import PartitionSpec as P

import kiwi
from kiwi.errors import InvalidArgumentError
from kiwi.hlo.known_kernels import registry as kernel_registry
from kiwi.hlo.tracing import trace

LENGTH, HEADS, WIDTH = 512, 8, 128
ATTENTION = "b s h d, b t h d, b t h d -> b s h d"
WHOLE: dict[str, Any] = {"need_replication_factors": ("s", "t", "d")}


@pytest.fixture(autouse=True)
def _same_registry(monkeypatch):
    """Restores the registry, so that tests register nothing for each other."""
    monkeypatch.setattr(kernel_registry, "_ENTRIES", dict(kernel_registry._ENTRIES))


def _types(layout: str, *, keys: str | None = None, groups: int = 1) -> list[Any]:
    """Returns the types of queries, keys and values of 16 sequences."""
    sizes = {"b": 16, "h": HEADS, "k": HEADS // groups, "t": LENGTH, "d": WIDTH}
    tensors = (layout, *[keys or layout.replace("h", "k")] * 2)
    shapes = (tuple(sizes[letter] for letter in tensor) for tensor in tensors)
    return [jax.ShapeDtypeStruct(shape, "bfloat16") for shape in shapes]


def _splash(mask_of_head: Any, make: Any = splash.make_splash_mha) -> Any:
    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
        mask = masks.MultiHeadMask([mask_of_head(head) for head in range(HEADS)])
        return jax.vmap(make(mask, head_shards=1, q_seq_shards=1))(q, k, v)

    return attend


def _causal(head: int) -> Any:
    return masks.CausalMask((LENGTH, LENGTH))


def _windows(head: int) -> Any:
    return masks.LocalMask((LENGTH, LENGTH), (128 * (1 + head % 2), 0), 0)


def _flash_in_blocks(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
    sizes = flash.BlockSizes.get_default(16, HEADS, LENGTH, LENGTH, WIDTH)
    ids = flash.SegmentIds(*[jnp.zeros((16, LENGTH), jnp.int32)] * 2)
    blocks = flash.BlockSizes(**{**vars(sizes), "block_b": 2})
    return flash.flash_attention(q, k, v, segment_ids=ids, block_sizes=blocks)


_cudnn = functools.partial(jax.nn.dot_product_attention, implementation="cudnn")
_mha = functools.partial(gpu_attention.mha, segment_ids=None)

ATTENTIONS = {
    "flash": (flash.flash_attention, _types("bhtd"), {"b", "h"}),
    "flash, blocks of the batch": (_flash_in_blocks, _types("bhtd"), {"b", "h"}),
    "splash": (_splash(_causal), _types("bhtd"), {"vmap3", "k"}),
    "splash, a mask per head": (_splash(_windows), _types("bhtd"), {"vmap3", "k"}),
    "splash, groups": (_splash(_causal), _types("bhtd", groups=4), {"vmap3", "k"}),
    "splash, one key": (
        _splash(_causal, splash.make_splash_mqa),
        _types("bhtd", keys="btd"),
        {"vmap3", "h"},
    ),
    "mha": (_mha, _types("bthd"), {"b", "k"}),
    "cudnn": (_cudnn, _types("bthd"), {"b", "k"}),
    "cudnn, causal groups": (
        functools.partial(_cudnn, is_causal=True),
        _types("bthd", groups=4),
        {"b", "k"},
    ),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_is_recognised_and_so_is_its_gradient(name):
    attend, types, sharded = ATTENTIONS[name]
    mean = lambda *args: jnp.mean(attend(*args).astype(jnp.float32))  # noqa: E731
    for step, count in ((attend, 1), (jax.value_and_grad(mean, argnums=(0, 1, 2)), 2)):
        program = trace(lambda *args, step=step: jax.tree.leaves(step(*args)), types)
        kernels = [e.kernel for e in program.equations if e.kernel is not None]
        assert len(kernels) == count
        assert kernels[0].sharded == sharded
        in_gradient = sharded - {"h"} if name == "splash, one key" else sharded
        assert kernels[-1].sharded == (in_gradient if count == 2 else sharded)
        share = 0.5 if name == "cudnn, causal groups" else 1.0
        assert {kernel.share_of_work for kernel in kernels} == {share}
        others = (e.name for e in program.equations if e.kernel is None)
        assert not any("pallas" in other or "dot_product" in other for other in others)


def _decoded() -> Any:
    types = [jax.ShapeDtypeStruct(s, "bfloat16") for s in ((16, 8, 128), *[(16, 512, 2, 128)] * 2)]
    return lambda q, k, v: decode_attention.gqa(q, k, v), types, {"b", "k"}


def _paged() -> Any:
    shapes = (16, 8, 128), (2, 64, 16, 128), (2, 64, 16, 128)
    types = [jax.ShapeDtypeStruct(shape, "bfloat16") for shape in shapes]
    types += [jax.ShapeDtypeStruct(shape, "int32") for shape in ((16,), (16, 4))]
    attend = functools.partial(paged.paged_attention, pages_per_compute_block=4)
    return attend, types, {"b", "k"}


@pytest.mark.parametrize("case", [_decoded, _paged])
def test_kernels_of_inference_are_recognised(case):
    attend, types, sharded = case()
    program = trace(lambda *args: jax.tree.leaves(attend(*args)), types)
    (kernel,) = (e.kernel for e in program.equations if e.kernel is not None)
    assert kernel.sharded == sharded


def test_a_function_is_its_own_outside_of_planning():
    wrapped: Any = flash.flash_attention
    code, kind = wrapped.__wrapped__.__code__, type(gpu_attention.mha)
    trace(lambda *args: [flash.flash_attention(*args)], _types("bhtd"))
    assert wrapped.__wrapped__.__code__ is code
    assert type(gpu_attention.mha) is kind is jax.custom_vjp
    jaxpr = jax.make_jaxpr(flash.flash_attention)(*_types("bhtd"))
    assert "pallas_call" in str(jaxpr) and "kiwi" not in str(jaxpr)


def _attention(q: jax.Array, k: jax.Array, v: jax.Array, *, scale: float = 0.5) -> jax.Array:
    weights = jax.nn.softmax(scale * jnp.einsum("bshd,bthd->bhst", q, k))
    return jnp.einsum("bhst,bthd->bshd", weights, v)


def _as_custom_vjp() -> Any:
    """Returns an attention whose gradient has another scale. The scale shows that the function's
    own gradient rule is used."""
    attend = jax.custom_vjp(lambda q, k, v: _attention(q, k, v), nondiff_argnums=())
    attend.defvjp(
        lambda *args: (attend(*args), args),
        lambda args, g: jax.vjp(functools.partial(_attention, scale=0.7), *args)[1](g),
    )
    return attend


def _as_custom_jvp() -> Any:
    attend = jax.custom_jvp(lambda q, k, v: _attention(q, k, v))
    other = functools.partial(_attention, scale=0.7)
    attend.defjvp(lambda args, dots: (attend(*args), jax.jvp(other, args, dots)[1]))
    return attend


def _as_closure() -> Any:
    scale = 0.25
    return lambda q, k, v: _attention(q, k, v, scale=scale)


FUNCTIONS = {
    "plain": lambda: lambda q, k, v: _attention(q, k, v),
    "closure": _as_closure,
    "jit": lambda: jax.jit(_attention, static_argnames="scale"),
    "custom_vjp": _as_custom_vjp,
    "custom_jvp": _as_custom_jvp,
}


def _library(monkeypatch: pytest.MonkeyPatch, function: Any) -> Any:
    """Returns a library's function, whose caller imported it before its registration."""
    module = ModuleType("my_lib.attention")
    module.fwd = function  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "my_lib", ModuleType("my_lib"))
    monkeypatch.setitem(sys.modules, "my_lib.attention", module)
    return function


def _step(attend: Any) -> Any:
    """Returns the step of a layer with queries sharded by batch and heads."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        q, k, v = (jnp.einsum("btm,mhd->bthd", x, params[n]) for n in "qkv")
        q = kiwi.hint(q, sharding=P("x", None, "y", None))
        mixed = kiwi.hint(attend(q, k, v), sharding=P("x", None, "y", None))
        return jnp.mean(jnp.einsum("bthd,hdm->btm", mixed, params["o"]) ** 2)

    return jax.value_and_grad(loss)


def _arguments(length: int = 64) -> Any:
    keys = jax.random.split(jax.random.key(0), 5)
    shapes = {"q": (32, 8, 16), "k": (32, 8, 16), "v": (32, 8, 16), "o": (8, 16, 32)}
    params = {
        n: 0.3 * jax.random.normal(key, s)
        for key, (n, s) in zip(keys[1:], shapes.items(), strict=True)
    }
    return params, jax.random.normal(keys[0], (8, length, 32))


def _assert_equal(found: Any, expected: Any) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=5e-4, atol=2e-4), found, expected
    )


def _kernels(plan: kiwi.Plan) -> list[Any]:
    return [d for d in plan.decisions if d.opcode == "custom_call"]


OPTIONS: dict[str, Any] = {"mesh_shape": (2, 4), "memory_budget": "1GiB", "verify": None}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_a_registered_function_is_sharded_and_computes_the_same(monkeypatch, kind):
    fwd = _library(monkeypatch, FUNCTIONS[kind]())
    step, args = _step(fwd), _arguments()
    expected = jax.jit(step)(*args)
    kiwi.register_kernel("my_lib.attention.fwd", ATTENTION, **WHOLE)
    planned = kiwi.jit(step, **OPTIONS)
    _assert_equal(planned(*args), expected)
    assert [d.sharding for d in _kernels(planned.plan(*args))] == [P("x", None, "y", None)] * 2


def test_jax_s_own_kernel_computes_the_same_on_shards():
    """In Pallas's interpreter, on virtual CPU devices."""
    attend = functools.partial(_mha, interpret=True, causal=True)
    step, args = _step(attend), _arguments(length=128)
    planned = kiwi.jit(step, **OPTIONS)
    _assert_equal(planned(*args), jax.jit(step)(*args))
    assert [d.sharding for d in _kernels(planned.plan(*args))] == [P("x", None, "y", None)] * 2


def test_layers_in_a_scan_under_checkpoint_share_their_kernel(monkeypatch):
    fwd = _library(monkeypatch, _as_custom_vjp())
    kiwi.register_kernel("my_lib.attention.fwd", ATTENTION, **WHOLE)

    def loss(params: Any, x: jax.Array) -> jax.Array:
        @jax.checkpoint
        def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
            q, k, v = (jnp.einsum("btm,mhd->bthd", x, w[n]) for n in "qkv")
            return x + jnp.einsum("bthd,hdm->btm", fwd(q, k, v), w["o"]), None

        return jnp.mean(jax.lax.scan(layer, x, params)[0] ** 2)

    params, x = _arguments()
    layers = jax.tree.map(lambda w: jnp.stack([w, w / 2]), params)
    planned = kiwi.jit(jax.value_and_grad(loss), **OPTIONS)
    _assert_equal(planned(layers, x), jax.jit(jax.value_and_grad(loss))(layers, x))
    assert [d.trips for d in _kernels(planned.plan(layers, x))] == [2, 2]


def test_a_shard_map_around_a_known_kernel_can_be_left_out():
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    spec = P("x", "y")
    attend = jax.shard_map(
        flash.flash_attention, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    program = trace(lambda *args: [attend(*args)], _types("bhtd"), follows_shardings=False)
    (kernel,) = (e.kernel for e in program.equations if e.kernel is not None)
    assert kernel.sharded == {"b", "h"}


def _masked(q: jax.Array, k: jax.Array, v: jax.Array, mask: Any = None, *, table: Any) -> Any:
    """Returns masked attention. `mask["of"]`: the mask of each sequence, or of all; `table`: one
    number per head."""
    mask = {} if mask is None else mask
    scores = jnp.einsum("bshd,bthd->bhst", q, k) + table[:, None, None]
    scores = jnp.where(mask.get("of", True), scores, -1e9)
    return {"mixed": jnp.einsum("bhst,bthd->bshd", jax.nn.softmax(scores), v)}


@pytest.mark.parametrize("sequences", [0, 1, 8])
def test_operands_by_name_are_optional_and_one_may_be_for_all(monkeypatch, sequences):
    fwd = _library(monkeypatch, lambda *args, **kwargs: _masked(*args, **kwargs))
    monkeypatch.setattr(sys.modules["my_lib.attention"], "fwd", _masked)
    rule = "b s h d, b t h d, b t h d, mask.of=b o s t, table=h -> b s h d"
    kiwi.register_kernel("my_lib.attention.fwd", rule, need_replication_factors=("s", "t"))
    del fwd
    mask = {"of": jnp.tril(jnp.ones((sequences, 1, 64, 64), bool))} if sequences else None
    table = jnp.arange(8.0)
    step = lambda q, k, v: _masked(jnp.sin(q), k, v, mask, table=table)["mixed"] * 2  # noqa: E731
    args = jax.random.normal(jax.random.key(0), (3, 8, 64, 8, 16))
    spec = P("x", None, "y")
    planned = kiwi.jit(step, **OPTIONS, in_shardings=spec, out_shardings=spec)
    _assert_equal(planned(*args), step(*args))
    assert [d.sharding for d in _kernels(planned.plan(*args))] == [P("x", None, "y", None)]


@pytest.mark.parametrize(
    ("name", "rule", "options", "message"),
    [
        ("fwd", ATTENTION, {}, "got the name 'fwd'"),
        ("my_lib.fwd", "b s h d", {}, "no sharding rule that can be read"),
        ("my_lib.fwd", [], {}, "got no rule"),
        ("my_lib.fwd", ATTENTION, {"need_replication_factors": "q"}, "no rule with q"),
        ("my_lib.fwd", ATTENTION, {"share_of_work": 2}, "share of work 2"),
    ],
)
def test_what_cannot_be_registered_is_refused(name, rule, options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        kiwi.register_kernel(name, rule, **options)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("b s h d, b t h d, b t h d, b s -> b s h d", "does not fit a call with the arrays q"),
        ("b s h, b t h d, b t h d -> b s h d", "3 dimensions"),
        ("b s h d, b b h d, b t h d -> b s h d", "does not fit"),
    ],
)
def test_a_rule_that_does_not_fit_a_call_is_refused(monkeypatch, rule, message):
    fwd = _library(monkeypatch, jax.jit(_attention))
    kiwi.register_kernel("my_lib.attention.fwd", rule)
    with pytest.raises(InvalidArgumentError, match=message):
        kiwi.plan(_step(fwd), *_arguments(), **OPTIONS)


def test_a_kernel_without_a_rule_that_takes_long_is_warned_of(caplog):
    def _cubed(x: Any, y: Any) -> None:
        y[...] = x[...] ** 3

    def step(x: jax.Array) -> jax.Array:
        x = jnp.sin(x)
        return jnp.cos(pl.pallas_call(_cubed, jax.ShapeDtypeStruct(x.shape, x.dtype))(x))

    x = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)
    with caplog.at_level(logging.WARNING, logger="kiwi"):
        plan = kiwi.plan(step, x, mesh_shape=(2, 4), profile="h100-sxm", verify=None)
    (message,) = (record.getMessage() for record in caplog.records)
    assert message in map(str, plan.notes)
    assert message.startswith("KIWI-K101: _cubed (") and "test_known_kernels.py" in message
    assert "whole on every device" in message and "kiwi.register_kernel" in message


@pytest.mark.skipif(find_spec("libtpu") is None, reason="the extra aot-tpu is not installed")
@pytest.mark.parametrize("name", ["flash"])
def test_attention_as_it_is_compiles_to_what_was_planned(name):
    attend, _, _ = ATTENTIONS[name]

    def loss(params: Any, x: jax.Array) -> jax.Array:
        q, k, v = (jnp.einsum("btm,mhd->bhtd", x, w) for w in params)
        return jnp.mean(attend(q, k, v).astype(jnp.float32) ** 2)

    weights = [jax.ShapeDtypeStruct((1024, HEADS, WIDTH), "bfloat16")] * 3
    x = jax.ShapeDtypeStruct((32, LENGTH, 1024), "bfloat16")
    plan = kiwi.plan(
        jax.value_and_grad(loss), weights, x, mesh_shape=(2, 4), profile="v5e", verify="tpu"
    )
    assert plan.compiled is not None and plan.compiled.time is not None
    ratio = plan.compiled.time.step_seconds / plan.estimate.step_seconds
    assert 0.85 < ratio < 1.15
    assert 0.8 < plan.compiled.peak_bytes / plan.estimate.peak_bytes < 1.1
    assert all(d.sharding[0] for d in _kernels(plan))
