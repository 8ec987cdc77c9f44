"""`custom_partitioning` with Shardy's rule: planned by the rule, computed by its `partition`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.custom_partitioning import ArrayMapping, SdyShardingRule, custom_partitioning
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import kiwi
from tests.helpers.on_cpu import ON_CPU

ROWS, WIDTH, HIDDEN = 32768, 16, 512


def _as_given(function: Any) -> Any:
    """Returns a partition that computes the same function on shards, in the requested layouts."""

    def partition(mesh: Any, operands: Any, results: Any) -> Any:
        layouts = (jax.tree.map(lambda x: x.sharding, tree) for tree in (results, operands))
        return mesh, function, *layouts

    return partition


def _plain_normalised(x: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
    root = jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-3)
    return x * root * scale, root[..., 0]


def _plain_gradient(
    x: jax.Array, scale: jax.Array, root: jax.Array, cotangent: jax.Array
) -> tuple[jax.Array, jax.Array]:
    root = root[..., None]
    inner = jnp.mean(cotangent * scale * x, -1, keepdims=True)
    return root * cotangent * scale - x * inner * root**3, cotangent * x * root


def _partitioned(function: Any, rule: Any, partition: Any = None, **factors: Any) -> Any:
    found = custom_partitioning(function)
    found.def_partition(partition or _as_given(function), sharding_rule=rule, **factors)
    return found


def _differentiable(forward: Any, backward: Any) -> Any:
    """Returns a normalisation whose gradient is a separate function."""

    @jax.custom_vjp
    def normalised(x: jax.Array, scale: jax.Array) -> jax.Array:
        return forward(x, scale)[0]

    def kept(x: jax.Array, scale: jax.Array) -> Any:
        y, root = forward(x, scale)
        return y, (x, scale, root)

    def pulled(residuals: Any, cotangent: jax.Array) -> Any:
        gradient, terms = backward(*residuals, cotangent)
        return gradient, terms.reshape(-1, terms.shape[-1]).sum(0)

    normalised.defvjp(kept, pulled)
    return normalised


def _step(normalised: Any) -> Any:
    """Returns a step whose rows are sharded over all devices."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        y = normalised(x @ params["in"], params["scale"])
        y = kiwi.hint(y, sharding=P(("x", "y"), None))
        return jnp.mean((jnp.tanh(y) @ params["out"]) ** 2)

    return jax.value_and_grad(loss)


def _arguments(*leading: int) -> Any:
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "in": 0.3 * jax.random.normal(keys[0], (WIDTH, HIDDEN)),
        "scale": 1 + 0.1 * jax.random.normal(keys[1], (HIDDEN,)),
        "out": 0.3 * jax.random.normal(keys[2], (HIDDEN, WIDTH)),
    }
    return params, jax.random.normal(keys[3], (*leading, ROWS, WIDTH))


def _kernels(plan: kiwi.Plan) -> list[Any]:
    return [d for d in plan.decisions if d.opcode == "custom_call"]


def _assert_equal(found: Any, expected: Any) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, expected
    )


OPTIONS: dict[str, Any] = {"mesh_shape": (2, 4), "profile": ON_CPU, "memory_budget": "1GiB"}
IN_ROWS = {"in_shardings": (None, P(("x", "y")))}
WHOLE = {"need_replication_factors": ("d",)}

RULES = {
    "text": lambda side: (side, WHOLE),
    "object": lambda side: (_as_object(side), {}),
    "function": lambda side: (lambda mesh, operands, results: (side, WHOLE), {}),
}


def _as_object(text: str) -> SdyShardingRule:
    sides = (
        tuple(ArrayMapping(*tensor.replace("...", "…").split()) for tensor in side.split(","))
        for side in text.split("->")
    )
    return SdyShardingRule(*sides, need_replication_factors=("d",))


@pytest.mark.parametrize("kind", RULES)
def test_it_is_sharded_by_its_rule_and_so_is_its_gradient(kind):
    forward, backward = (
        _partitioned(function, rule, **factors)
        for function, (rule, factors) in (
            (_plain_normalised, RULES[kind]("... d, d -> ... d, ...")),
            (_plain_gradient, RULES[kind]("... d, d, ..., ... d -> ... d, ... d")),
        )
    )
    args = _arguments()
    planned = kiwi.jit(_step(_differentiable(forward, backward)), **OPTIONS, **IN_ROWS)
    plan = planned.plan(*args)
    assert [d.phase for d in _kernels(plan)] == ["forward", "backward"]
    assert [d.sharding for d in _kernels(plan)] == [P(("x", "y"), None)] * 2
    assert not any("custom_partitioning" in note.text for note in plan.notes)
    expected = _step(_differentiable(_plain_normalised, _plain_gradient))
    _assert_equal(planned(*args), expected(*args))
    assert plan.compiled is not None
    assert plan.estimate.collectives == plan.compiled.collectives
    assert plan.compiled.peak_bytes <= plan.estimate.peak_bytes < 4 * ROWS * HIDDEN


def _summed(x: jax.Array, w: jax.Array) -> jax.Array:
    return x @ w


def _summed_over_columns(mesh: Any, operands: Any, results: Any) -> Any:
    """Returns a partition that sums over the mesh's second axis itself, whatever the plan
    chooses."""

    def on_each(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.psum(x @ w, "y")

    rows = operands[0].sharding.spec[0]
    axes = (rows,) if isinstance(rows, str) else rows or ()
    assert "y" not in axes
    layouts = (P(rows, "y"), P("y", None))
    return (
        mesh,
        on_each,
        NamedSharding(mesh, P(rows)),
        tuple(NamedSharding(mesh, spec) for spec in layouts),
    )


def test_a_partition_may_want_other_layouts_and_have_collectives():
    product = _partitioned(
        _summed, "m k, k n -> m n", _summed_over_columns, reduction_factors=("k",)
    )
    step = lambda f: lambda w, x: jnp.tanh(f(jnp.sin(x), w))  # noqa: E731
    x, w = (jax.random.normal(jax.random.key(k), (64, 64)) for k in range(2))
    layouts = {"in_shardings": (None, P("x")), "out_shardings": P("x")}
    planned = kiwi.jit(step(product), **OPTIONS, **layouts)
    _assert_equal(planned(w, x), step(_summed)(w, x))
    (kernel,) = _kernels(planned.plan(w, x))
    assert kernel.sharding == P("x", None)
    assert "all-reduce" in str(planned.plan(w, x).compiled.collectives)


def test_factors_of_several_sizes_and_of_shared_dimensions():
    """Of several sizes of a factor Shardy takes the least; sizes in parentheses are given."""

    def halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x[:, ::2], x.reshape(x.shape[0] * 2, -1)

    split = _partitioned(halves, "b d -> b d, (b h) e", h=2)
    step = lambda f: lambda x: tuple(map(jnp.cos, f(jnp.sin(x))))  # noqa: E731
    x = jax.random.normal(jax.random.key(0), (64, 32))
    planned = kiwi.jit(step(split), **OPTIONS, in_shardings=P(("x", "y")))
    _assert_equal(planned(x), step(halves)(x))
    (kernel,) = _kernels(planned.plan(x))
    assert kernel.sharding[1] is None


def test_layers_in_a_scan_share_their_kernel():
    rule = {"need_replication_factors": ("d",)}
    forward = _partitioned(_plain_normalised, "b d, d -> b d, b", **rule)
    backward = _partitioned(_plain_gradient, "b d, d, b, b d -> b d, b d", **rule)

    def step(normalised: Any) -> Any:
        def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
            return x + jnp.tanh(normalised(x @ w["in"], w["scale"])) @ w["out"], None

        def loss(params: Any, x: jax.Array) -> jax.Array:
            # By rows first: XLA:CPU sums a whole array one by one, and loses digits.
            return jnp.mean(jnp.mean(jax.lax.scan(layer, x, params)[0] ** 2, -1))

        return jax.value_and_grad(loss)

    params, x = _arguments()
    layers = jax.tree.map(lambda w: jnp.stack([w, w / 2]), params)
    planned = kiwi.jit(step(_differentiable(forward, backward)), **OPTIONS, **IN_ROWS)
    expected = step(_differentiable(_plain_normalised, _plain_gradient))
    _assert_equal(planned(layers, x), expected(layers, x))
    assert [d.trips for d in _kernels(planned.plan(layers, x))] == [2, 2]


def test_a_saved_plan_runs_and_planning_again_needs_no_search(tmp_path):
    whole = {"need_replication_factors": ("d",)}
    softmax = _partitioned(lambda x: jax.nn.softmax(x), "b d -> b d", **whole)
    step = lambda x: softmax(jnp.sin(x))  # noqa: E731
    x = jax.random.normal(jax.random.key(0), (64, 32))
    first, again = (
        kiwi.plan(step, x, **OPTIONS, in_shardings=P("x"), verify=None) for _ in range(2)
    )
    assert first.in_shardings == again.in_shardings
    first.save(tmp_path / "plan.json")
    _assert_equal(kiwi.load_plan(tmp_path / "plan.json").apply(step)(x), jax.nn.softmax(jnp.sin(x)))


def test_without_a_rule_it_runs_whole():
    def doubled(x: jax.Array) -> jax.Array:
        return x * 2

    plan = kiwi.plan(
        lambda x: _partitioned(doubled, None)(jnp.sin(x)), jnp.ones((64, 8)), **OPTIONS
    )
    assert "Planned whole and replicated: custom_partitioning" in plan.notes[0].text
