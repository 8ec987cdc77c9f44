"""Arguments and results in host memory: numbers, memory, time, order, and refusals."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import kiwi
from kiwi import Constraints
from kiwi.errors import InvalidArgumentError, NoPlanFoundError
from kiwi.mesh import hardware
from kiwi.xla.gpu import compiler as cuda
from tests.helpers.adam import OPTIMIZER, adam_step
from tests.helpers.planning import array

WIDTH, BATCH = 64, 32
MOMENTS = Constraints(memory_kinds={"state/1/**": "pinned_host"})
ALL = Constraints(memory_kinds={"state/**": "pinned_host"})
WEIGHT_BYTES = WIDTH * WIDTH * 4

INSTALLED = cuda._version(cuda.PLUGINS[0]) is not None


def loss(params: list[jax.Array], x: jax.Array) -> jax.Array:
    for weight in params:
        x = jnp.tanh(x @ weight) + x
    return jnp.mean(x**2)


step = adam_step(loss)


def make_state() -> Any:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((3, WIDTH, WIDTH)).astype(np.float32) / 16
    params = [jnp.asarray(w) for w in weights]
    return params, OPTIMIZER.init(params)


def plan(constraints: Constraints | None = None, **options: Any) -> kiwi.Plan:
    state = jax.eval_shape(make_state)
    defaults = {"mesh_shape": (1,), "verify": None, "donate_argnums": 0}
    x = array(BATCH, WIDTH)
    return kiwi.plan(step, state, x, constraints=constraints, **{**defaults, **options})


@pytest.mark.parametrize(
    ("profile", "mesh_shape", "donated", "constraints"),
    [
        pytest.param("h100-sxm", (2, 4), 0, ALL, id="h100-sxm, all"),
        pytest.param("h100-sxm", (2, 4), (), MOMENTS, id="h100-sxm, moments, nothing donated"),
        pytest.param("v5e", (2, 4), 0, MOMENTS, id="v5e, moments"),
        pytest.param("v5e", (2, 4), (), ALL, id="v5e, all, nothing donated"),
        pytest.param("v5e", (1,), 0, ALL, id="one v5e, all"),
    ],
)
def test_training_from_the_host_gives_the_same_numbers(
    profile: str, mesh_shape: tuple[int, ...], donated: Any, constraints: Constraints
):
    """On a v5e the copies are paced."""
    x = jnp.asarray(np.random.default_rng(1).standard_normal((BATCH, WIDTH)), "float32")
    planned = kiwi.jit(
        step,
        mesh_shape=mesh_shape,
        profile=profile,
        verify=None,
        donate_argnums=donated,
        constraints=constraints,
    )
    state, plain = make_state(), make_state()
    for _ in range(3):
        state, value = planned(state, x)
        plain, wanted = jax.jit(step)(plain, x)
        np.testing.assert_allclose(value, wanted, rtol=1e-5)
    for found, expected in zip(jax.tree.leaves(state), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    params, moments = (jax.tree.leaves(part) for part in state)
    assert {m.sharding.memory_kind for m in moments} == {"pinned_host"}
    kinds = {p.sharding.memory_kind for p in params}
    assert kinds == ({"pinned_host"} if constraints is ALL else {"device"})


def test_moments_on_the_host_take_their_bytes_off_the_device():
    usual, found = plan(), plan(MOMENTS)
    # Six moments less; one of them at a time, its successor and the update are on the device.
    saved_bytes = usual.estimate.peak_bytes - found.estimate.peak_bytes
    assert 3 * WEIGHT_BYTES <= saved_bytes <= 6 * WEIGHT_BYTES + 8


def test_copies_take_their_bytes_over_the_bandwidth():
    found = plan(MOMENTS, profile="h100-sxm")
    copies = [d for d in found.decisions if d.opcode in ("host_fetch", "host_store")]
    weights = [d for d in copies if d.shape == (WIDTH, WIDTH)]
    assert len(weights) == 2 * 6  # two moments of three weights, there and back
    device = hardware("h100-sxm")
    seconds = WEIGHT_BYTES / device.host_bandwidth_bytes_per_second
    launch = device.kernel_launch_seconds
    assert [d.seconds for d in weights] == pytest.approx([launch + seconds] * 12)


def test_what_lies_on_the_host_is_fetched_for_its_first_reader():
    found = plan(ALL)
    units, producer = found.execution.units, found.execution.units.producer
    names = [units.graph.program.equations[unit.root].name for unit in units.units]
    for unit, name in enumerate(names):
        if name == "host_fetch":
            (value,) = units.units[unit].outputs
            between = set(names[unit : units.readers[value][0]])
            assert between == {"host_fetch"}
    assert producer and names.count("host_store") == names.count("host_fetch") == 10


def test_parameters_are_fetched_again_where_memory_is_short():
    usual = plan(ALL)
    for share in (0.95, 0.9, 0.85, 0.8, 0.75):
        try:
            tight = plan(ALL, memory_budget=int(share * usual.estimate.peak_bytes))
        except (kiwi.errors.InfeasibleBudgetError, NoPlanFoundError):
            continue
        again = [d for d in tight.decisions if d.residency == "recompute"]
        if any(d.opcode == "host_fetch" for d in again):
            return
    pytest.fail("nothing was fetched again")


def test_shardings_with_a_memory_kind_say_so_too(make_mesh):
    sharding = NamedSharding(make_mesh(4), P("x"), memory_kind="pinned_host")
    given = {"mesh_shape": (4,), "verify": None, "in_shardings": sharding}
    planned = kiwi.jit(lambda x: (x * 2.0, x.sum()), **given, out_shardings=(sharding, None))
    double, total = planned(jnp.arange(8.0))
    np.testing.assert_array_equal(double, 2 * np.arange(8.0))
    assert (double.sharding.memory_kind, total.sharding.memory_kind) == ("pinned_host", "device")
    found = planned.plan(jnp.arange(8.0))
    pinned = kiwi.plan(
        lambda x: x * 2.0,
        array(8),
        mesh_shape=(4,),
        verify=None,
        constraints=Constraints({"x": sharding}),
    )
    opcodes = [[d.opcode for d in p.decisions] for p in (found, pinned)]
    assert opcodes[0][0] == opcodes[1][0] == "host_fetch"
    assert "host_store" in opcodes[0] and "host_store" not in opcodes[1]


def scanned(weights: jax.Array, x: jax.Array) -> jax.Array:
    narrow = weights.astype(jnp.bfloat16)
    body = lambda h, w: (jnp.tanh(h @ w.astype(jnp.float32)), None)  # noqa: E731
    return jnp.mean(jax.lax.scan(body, x, narrow)[0] ** 2)


@pytest.mark.parametrize(
    ("profile", "width", "spec", "fetched"),
    [
        ("v5e", 1024, None, (1024, 1024)),
        ("v5e", 1024, P("x"), (1024, 1024)),  # Cut along the layers: all are fetched in front.
        ("v5e", 16, None, (2, 16, 16)),  # Small elements are not worth a copy each.
        ("h100-sxm", 1024, None, (2, 1024, 1024)),  # openxla/xla#46231
    ],
)
def test_scans_fetch_their_own_elements_on_tpus(
    profile: str, width: int, spec: Any, fetched: tuple[int, ...], tmp_path
):
    """And fetch them again, or keep them, for the backward pass."""
    rng = np.random.default_rng(2)
    weights = jnp.asarray(rng.standard_normal((2, width, width)) / width**0.5, "float32")
    x = jnp.asarray(rng.standard_normal((8, width)), "float32")
    wanted, expected = jax.value_and_grad(scanned)(weights, x)
    options = {"profile": profile, "mesh_shape": (2, 2), "in_shardings": (spec, None)}
    kinds = Constraints(memory_kinds={"weights": "pinned_host"})
    step = jax.value_and_grad(scanned)
    planned = kiwi.jit(step, verify=None, constraints=kinds, **options)
    found = planned.plan(weights, x)
    assert {d.shape for d in found.decisions if d.opcode == "host_fetch"} == {fetched}
    assert found.estimate.host_peak_bytes > 0
    found.save(tmp_path / "plan.json")
    for function in (planned, kiwi.load_plan(tmp_path / "plan.json").apply(step)):
        value, gradient = function(weights, x)
        np.testing.assert_allclose(value, wanted, rtol=1e-2)
        np.testing.assert_allclose(gradient, expected, atol=1e-3)


def test_scans_in_scans_share_what_was_fetched_in_front_of_them():
    def steps(weights: jax.Array, xs: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda total, x: (total + scanned(weights, x), None), 0.0, xs)[0]

    kinds = Constraints(memory_kinds={"weights": "pinned_host"})
    given = array(2, 1024, 1024), array(4, 8, 1024)
    found = kiwi.plan(steps, *given, mesh_shape=(1,), profile="v5e", verify=None, constraints=kinds)
    (fetch,) = [d for d in found.decisions if d.opcode == "host_fetch"]
    assert fetch.shape == (2, 1024, 1024)


def test_a_saved_plan_knows_what_lay_on_the_host(tmp_path):
    path = tmp_path / "plan.json"
    plan(MOMENTS, mesh_shape=(2,)).save(path)
    applied = kiwi.load_plan(path).apply(step)
    (_, moments), _ = applied(make_state(), jnp.ones((BATCH, WIDTH)))
    assert {m.sharding.memory_kind for m in jax.tree.leaves(moments)} == {"pinned_host"}


def test_the_cpu_check_says_that_it_cannot():
    note = "Not compiled: programs for 'cpu' have no host memory."
    found = plan(MOMENTS, verify="cpu")
    assert (
        note in [n.text for n in found.notes]
        and found.compiled is None
        and found.cross_check is None
    )
    with pytest.raises(InvalidArgumentError, match="host memory"):
        plan(MOMENTS, verify="cpu", profile="cpu")


def test_unknown_kinds_and_keys_are_refused():
    with pytest.raises(InvalidArgumentError, match="'disk'"):
        Constraints(memory_kinds={"state/**": "disk"})
    with pytest.raises(InvalidArgumentError, match=r"key<.*cannot lie in host memory"):
        kiwi.plan(
            jax.random.normal,
            jax.eval_shape(lambda: jax.random.key(0)),
            mesh_shape=(1,),
            verify=None,
            constraints=Constraints(memory_kinds={"key": "pinned_host"}),
        )


@pytest.mark.parametrize(("kinds", "times"), [({}, 1), ({"x": "pinned_host"}, 2)])
def test_only_what_lies_on_the_host_is_traced_twice(kinds: dict[str, str], times: int):
    traced = []

    def counted(x: jax.Array) -> jax.Array:
        traced.append(x)
        return jnp.sum(x * 2.0)

    constraints = Constraints(memory_kinds=kinds)
    found = kiwi.plan(counted, array(8), mesh_shape=(1,), verify=None, constraints=constraints)
    assert len(traced) == times
    assert ("host_fetch" in {d.opcode for d in found.decisions}) is bool(kinds)


@pytest.mark.skipif(not INSTALLED, reason="the extra aot-cuda is not installed")
@pytest.mark.usefixtures("cublas_is_lent_its_workspace")
@pytest.mark.parametrize("constraints", [MOMENTS, ALL], ids=["moments", "all"])
def test_the_gpu_compiler_leaves_host_memory_out_of_the_peak(constraints: Constraints):
    found = plan(constraints, mesh_shape=(2, 2), verify="cuda", profile="h100-sxm")
    assert found.compiled is not None and found.compiled.memory is not None
    assert found.compiled.peak_bytes == pytest.approx(found.estimate.peak_bytes, rel=0.15)
    rows = kiwi.memory_report(found).compiled
    assert sum(row.bytes for row in rows) == found.compiled.peak_bytes
    assert not [row for row in rows if row.name.startswith("state[1][0].mu")]
