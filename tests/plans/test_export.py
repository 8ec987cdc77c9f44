"""Plans used without Kiwi at run time: policies, shardings, and rules of logical axes."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import kiwi
from kiwi.errors import InvalidArgumentError
from kiwi.xla.cpu.compiler import CPU_COMPILER_OPTIONS
from tests.helpers.planning import array

WIDTH, ROWS, LAYERS = 64, 512, 6


def loss(params, batch):
    x, y = batch
    for w in params:
        x = x + jnp.tanh(x @ w) * jax.nn.silu(x)
    return ((x - y) ** 2).mean()


def scanned_loss(params, batch):
    x, y = batch
    x, _ = jax.lax.scan(lambda x, w: (x + jnp.tanh(x @ w) * jax.nn.silu(x), None), x, params)
    return ((x - y) ** 2).mean()


def step_of(function):
    def step(params, batch):
        value, gradients = jax.value_and_grad(function)(params, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    return step


def abstract_args(is_scanned=False):
    batch = (array(ROWS, WIDTH), array(ROWS, WIDTH))
    if is_scanned:
        return array(LAYERS, WIDTH, WIDTH), batch
    return [array(WIDTH, WIDTH) for _ in range(LAYERS)], batch


def concrete(args):
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda s: (0.2 * rng.standard_normal(s.shape)).astype(s.dtype), args)


def one_device_plan(function, args, share):
    options = {"mesh_shape": (1,), "profile": "cpu", "verify": None}
    free = kiwi.plan(step_of(function), *args, memory_budget="1GiB", **options).peak_bytes
    return kiwi.plan(step_of(function), *args, memory_budget=int(share * free), **options)


def compiled(function, args):
    return jax.jit(step_of(function), compiler_options=CPU_COMPILER_OPTIONS).lower(*args).compile()


def peak(program):
    analysis = program.memory_analysis()
    parts = analysis.argument_size_in_bytes + analysis.output_size_in_bytes
    return parts + analysis.temp_size_in_bytes - analysis.alias_size_in_bytes


def matmuls(jaxpr):
    found = 0
    for eqn in jaxpr.eqns:
        found += eqn.primitive.name == "dot_general"
        for inner in jax.extend.core.jaxprs_in_params(eqn.params):
            found += matmuls(getattr(inner, "jaxpr", inner))
    return found


def planned_matmuls(plan):
    graph = plan.execution.units.graph
    roots = [
        sum(graph.program.equations[e].name == "dot_general" for e in unit.equations)
        for unit in plan.execution.units.units
    ]
    return sum(roots[unit] for unit in plan.execution.schedule.steps)


@pytest.mark.parametrize("share", [0.72])
def test_a_policy_keeps_and_recomputes_as_the_plan(share):
    args = abstract_args()
    plan = one_device_plan(loss, args, share)
    assert plan.residency_counts()["recompute"] > 0
    exported = plan.checkpoint_policy(loss, *args)
    jaxpr = jax.make_jaxpr(step_of(exported.checkpointed))(*args).jaxpr
    # XLA drops what the recomputed part does not need; so does this.
    assert matmuls(jaxpr) == planned_matmuls(plan)
    values = concrete(args)
    got = jax.jit(step_of(exported.checkpointed))(*values)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        got,
        jax.jit(step_of(loss))(*values),
    )
    without = peak(compiled(loss, args))
    under_policy = peak(compiled(exported.checkpointed, args))
    assert under_policy < 0.92 * without
    assert under_policy < 1.08 * plan.memory_budget_bytes


@pytest.mark.parametrize(("share", "is_named"), [(0.85, True), (0.7, False)])
def test_a_policy_reaches_into_scans(share, is_named):
    args = abstract_args(is_scanned=True)
    plan = one_device_plan(scanned_loss, args, share)
    exported = plan.checkpoint_policy(scanned_loss, *args)
    assert bool(exported.names) == is_named
    values = concrete(args)
    got = jax.jit(step_of(exported.checkpointed))(*values)
    expected = jax.jit(step_of(scanned_loss))(*values)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, expected)
    under_policy = peak(compiled(exported.checkpointed, args))
    assert under_policy < 0.9 * peak(compiled(scanned_loss, args))


def test_names_save_what_derivatives_read():
    """With the plain name of a tanh, its own derivative would recompute it and the matmul."""
    args = abstract_args()
    plan = kiwi.plan(step_of(loss), *args, mesh_shape=(1,), verify=None, memory_budget="1GiB")
    exported = plan.checkpoint_policy(loss, *args)
    jaxpr = jax.make_jaxpr(step_of(exported.checkpointed))(*args).jaxpr
    assert matmuls(jaxpr) == matmuls(jax.make_jaxpr(step_of(loss))(*args).jaxpr)


def test_another_function_has_no_policy():
    args = abstract_args()
    plan = kiwi.plan(step_of(loss), *args, mesh_shape=(1,), verify=None)
    with pytest.raises(InvalidArgumentError, match="Most of the loss"):
        plan.checkpoint_policy(lambda w, x: (jnp.sort(w) * x).sum(), array(7), array(7))


class Mlp(nn.Module):
    @nn.compact
    def __call__(self, x):
        init = nn.initializers.lecun_normal()
        for k in range(2):
            up = nn.with_logical_partitioning(init, ("embed", "mlp"))
            down = nn.with_logical_partitioning(init, ("mlp", "embed"))
            h = nn.relu(nn.Dense(4 * WIDTH, kernel_init=up, use_bias=False, name=f"up{k}")(x))
            x = x + nn.Dense(WIDTH, kernel_init=down, use_bias=False, name=f"down{k}")(h)
        return x


OPTIMIZER = optax.adam(1e-3)


def flax_step(params, state, batch):
    def flax_loss(params):
        return ((Mlp().apply(params, batch[0]) - batch[1]) ** 2).mean()

    value, gradients = jax.value_and_grad(flax_loss)(params)
    updates, state = OPTIMIZER.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


def flax_args(*, boxed=True):
    params = jax.eval_shape(Mlp().init, jax.random.key(0), array(1, WIDTH))
    params = params if boxed else nn.unbox(params)
    batch = (array(ROWS, WIDTH), array(ROWS, WIDTH))
    return params, jax.eval_shape(OPTIMIZER.init, params), batch


PINS = kiwi.Constraints({"**/up*/kernel/**": P(None, "y"), "**/down*/kernel/**": P("y", None)})


def flax_plan(constraints=PINS, **options):
    return kiwi.plan(
        flax_step,
        *flax_args(),
        mesh_shape=(2, 2),
        memory_budget="1GiB",
        verify=None,
        constraints=constraints,
        **options,
    )


def test_partition_specs_serve_jit_without_kiwi():
    plan = flax_plan()
    specs = plan.partition_specs()
    args = concrete(flax_args())
    mesh = plan.mesh.jax_mesh()
    to_named = lambda tree: jax.tree.map(  # noqa: E731
        lambda s: NamedSharding(mesh, s), tree, is_leaf=lambda s: isinstance(s, P)
    )
    step = jax.jit(flax_step, in_shardings=to_named(specs.arguments))
    program = step.lower(*args).compile()
    held = sum(
        size for size in map(shard_bytes(plan), plan.traced.call.shapes, specs.by_path.values())
    )
    assert program.memory_analysis().argument_size_in_bytes == held
    got, expected = step(*args), jax.jit(flax_step)(*args)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-3), got, expected)


def shard_bytes(plan):
    mesh = plan.mesh.jax_mesh()

    def size(shape, spec):
        local = NamedSharding(mesh, spec).shard_shape(shape.shape)
        return int(np.prod(local)) * shape.dtype.itemsize

    return size


def test_partition_specs_are_found_by_path():
    specs = flax_plan().partition_specs()
    found = specs.matching("params/**/up*/**")
    assert set(found.values()) == {P(None, "y")}
    assert len(found) == 2
    assert len(specs.matching("state/**/mu/**/down*/**")) == 2
    assert "batch/0" in specs.by_path


def test_logical_rules_lay_out_the_parameters_as_planned():
    rules = flax_plan().logical_rules()
    assert dict(rules.rules) == {"embed": None, "mlp": "y"}
    assert not [path for path in rules.conflicts if path.startswith("params")]
    logical = nn.get_partition_spec(jax.eval_shape(Mlp().init, jax.random.key(0), array(1, WIDTH)))
    specs = nn.logical_to_mesh(logical, rules.rules)
    assert specs["params"]["up0"]["kernel"] == P(None, "y")
    assert specs["params"]["down1"]["kernel"] == P("y", None)


def test_what_rules_cannot_say_is_reported():
    odd = {"**/up0/kernel/**": P("x", None), **PINS.shardings}
    rules = flax_plan(kiwi.Constraints(odd)).logical_rules()
    assert rules.conflicts["params/params/up0/kernel/value"] == (P("x", None), P(None, "y"))


def test_names_can_be_given_beside_plain_parameters():
    plan = kiwi.plan(
        lambda w, x: (x @ w).sum(),
        array(64, 64),
        array(64, 64),
        mesh_shape=(2,),
        verify=None,
        constraints=kiwi.Constraints({"w": P(None, "x"), "x": P()}),
    )
    rules = plan.logical_rules((("embed", "mlp"), None))
    assert rules.rules == (("embed", None), ("mlp", "x"))
    with pytest.raises(InvalidArgumentError, match="names its dimensions"):
        plan.logical_rules()


def test_arguments_may_have_none_where_others_have_arrays():
    plan = kiwi.plan(
        lambda params, x: (x @ params["w"]).sum(),
        {"bias": None, "w": array(64, 64)},
        array(64, 64),
        mesh_shape=(2,),
        verify=None,
        constraints=kiwi.Constraints({"params/w": P(None, "x"), "x": P()}),
    )
    rules = plan.logical_rules(({"bias": None, "w": ("embed", "mlp")}, None))
    assert rules.rules == (("embed", None), ("mlp", "x"))
