"""`kiwi.plan` and `kiwi.jit` from the outside."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import kiwi
from examples import mlp
from kiwi import errors
from kiwi.sizes import size_above
from tests.helpers.on_cpu import ON_CPU
from tests.helpers.planning import array

CONFIG = mlp.MlpConfig(layers=2, width=32, batch=64)
STEP = mlp.make_train_step(CONFIG)
STATE, BATCH = mlp.abstract_state(CONFIG), mlp.abstract_batch(CONFIG)
W, X = np.full((16, 8), 0.25, np.float32), np.arange(64 * 16, dtype=np.float32).reshape(64, 16)


def matmul(w, x):
    return jnp.tanh(x @ w)


def plan_step(**options):
    options = {"mesh_shape": (2, 4), "verify": None, **options}
    return kiwi.plan(STEP, STATE, BATCH, **options)


@pytest.fixture(scope="module")
def checked_plan():
    """Returns a verified plan, with the batch cut along one axis."""
    return plan_step(
        profile=ON_CPU, verify="cpu", donate_argnums=0, in_shardings=(None, PartitionSpec("x"))
    )


def test_estimate_and_compiled_stand_side_by_side(checked_plan):
    e, c = checked_plan.estimate, checked_plan.compiled
    parts = e.compute_seconds + e.communication_seconds + e.resharding_seconds + e.recompute_seconds
    assert e.step_seconds == pytest.approx(parts - e.hidden_seconds) and e.step_seconds > 0
    exposed = e.communication_seconds + e.resharding_seconds - e.hidden_seconds
    assert e.exposed_seconds == pytest.approx(exposed)
    assert e.peak_bytes >= max(e.memory_bytes) == e.memory_bytes[e.peak_unit]
    assert c.target == "cpu" and c.peak_bytes > 0
    text = str(checked_plan)
    for words in ("8 x h100-sxm (x=2, y=4)", "Peak memory, estimated", "Peak memory, compiled"):
        assert words in text
    for words in ("Step time", "argument", "sharding", "gap", "state.params['layers'][*]"):
        assert words in text


def test_solve_result_has_a_bound_and_a_gap(checked_plan):
    result = checked_plan.solve_result
    assert result.bound <= result.objective * (1 + 1e-9)
    assert result.gap == pytest.approx(
        (result.objective - result.bound) / result.objective, abs=1e-9
    )
    assert result.solver and result.seconds >= 0
    step_seconds = checked_plan.estimate.step_seconds
    if checked_plan.execution.kept_copies:  # they come behind the solver
        assert step_seconds < result.objective
    else:
        assert step_seconds == pytest.approx(result.objective)


def test_shardings_have_the_structure_of_arguments_and_results(checked_plan):
    is_spec = lambda leaf: isinstance(leaf, PartitionSpec)  # noqa: E731
    in_tree = jax.tree.structure(checked_plan.in_shardings, is_leaf=is_spec)
    assert in_tree == jax.tree.structure((STATE, BATCH))
    out_tree = jax.tree.structure(checked_plan.out_shardings, is_leaf=is_spec)
    assert out_tree == jax.tree.structure(jax.eval_shape(STEP, STATE, BATCH))


def test_a_state_comes_back_where_it_was(checked_plan):
    assert checked_plan.in_shardings[0] == checked_plan.out_shardings[0]


def test_decisions_name_operators_and_lines(checked_plan):
    assert len(checked_plan.decisions) == len(checked_plan.execution.units.units)
    assert {d.phase for d in checked_plan.decisions} == {"forward", "backward", "update"}
    assert {d.residency for d in checked_plan.decisions} <= {"keep", "recompute"}
    dots = [d for d in checked_plan.decisions if "dot_general" in (d.opcode, *d.absorbed)]
    assert len(dots) == 4 + 7 and any("mlp.py" in d.source_line for d in dots)
    assert sum(checked_plan.residency_counts().values()) == len(checked_plan.decisions)


def test_a_large_difference_of_estimate_and_compiled_is_said(checked_plan):
    ratio = checked_plan.estimate.peak_bytes / checked_plan.compiled.peak_bytes
    said = any("times the compiled one" in note.text for note in checked_plan.notes)
    assert said == (abs(ratio - 1) > 0.25)


def test_equal_input_gives_equal_plans(checked_plan):
    again = plan_step(
        profile=ON_CPU, verify="cpu", donate_argnums=0, in_shardings=(None, PartitionSpec("x"))
    )
    assert again.decisions == checked_plan.decisions
    assert again.in_shardings == checked_plan.in_shardings
    assert again.out_shardings == checked_plan.out_shardings
    assert again.execution.schedule == checked_plan.execution.schedule


def test_without_check_compiled_is_none():
    found = plan_step(mesh_shape=(1,))
    assert found.compiled is None and "not checked" in str(found)


# Forms of kiwi.jit.


def test_factory_bare_and_function_forms_run():
    options = {"mesh_shape": (2, 4), "verify": None}
    expected = matmul(W, X)

    @kiwi.jit(**options)
    def decorated(w, x):
        """Documented."""
        return matmul(w, x)

    bare = kiwi.jit(matmul)  # one axis over all devices
    for function in (decorated, kiwi.jit(matmul, **options), bare):
        np.testing.assert_allclose(function(W, X), expected, rtol=1e-6)
    assert decorated.__name__ == "decorated" and decorated.__doc__ == "Documented."
    assert bare.plan(W, X).mesh.shape == (8,)


def test_jit_of_a_planned_function_takes_the_function_inside():
    inner = kiwi.jit(matmul, mesh_shape=(2, 4), verify=None)
    outer = kiwi.jit(inner, mesh_shape=(8,), verify=None)
    assert outer.function is matmul and outer.plan(W, X).mesh.shape == (8,)


def test_plans_are_cached_by_signature(monkeypatch):
    planned = []
    make_plan = kiwi.api.make_plan

    def counting(traced, *rest):
        planned.append(traced)
        return make_plan(traced, *rest)

    monkeypatch.setattr(kiwi.api, "make_plan", counting)
    step = kiwi.jit(matmul, mesh_shape=(2, 4), verify=None)
    first = step.plan(W, X)
    step(W, X)
    step(jnp.asarray(W) + 1, X)
    assert step.plan(array(16, 8), array(64, 16)) is first and len(planned) == 1
    step(W, X[:32])
    assert len(planned) == 2


def test_another_budget_does_not_trace_again():
    traces = []

    def counted(w, x):
        traces.append(None)
        return matmul(w, x)

    step = kiwi.jit(counted, mesh_shape=(2, 4), verify=None)
    other = step.with_options(mesh_shape=(8,), memory_budget="1GiB")
    assert step.plan(W, X).mesh.size == other.plan(W, X).mesh.size
    assert other.plan(W, X).memory_budget_bytes == 2**30 and len(traces) == 1


def test_static_keyword_and_pytree_arguments_reach_the_function():
    @kiwi.jit(mesh_shape=(2, 4), verify=None, static_argnames="double")
    def function(tree, *, bias, double):
        return {"y": [tree["w"] * (2 if double else 1) + bias]}

    for double in (True, False):
        got = function({"w": W}, bias=1.0, double=double)
        np.testing.assert_allclose(got["y"][0], W * (1 + double) + 1)


def test_donated_arguments_are_consumed_and_others_are_not():
    step = kiwi.jit(lambda s, x: (s + x, x.sum()), mesh_shape=(8,), verify=None, donate_argnums=0)
    state, batch = step.plan(X, X).place(X, X)
    step(state, batch)
    assert state.is_deleted() and not batch.is_deleted()


def test_place_puts_arguments_where_the_plan_wants_them():
    options = {"in_shardings": (PartitionSpec("y"), PartitionSpec("x")), "verify": None}
    found = kiwi.plan(matmul, W, X, mesh_shape=(2, 4), **options)
    placed = found.place(W, X)
    for array_, spec in zip(placed, found.in_shardings, strict=True):
        assert array_.sharding.spec == spec or array_.sharding.is_equivalent_to(
            NamedSharding(array_.sharding.mesh, spec), array_.ndim
        )
    assert placed[0].addressable_shards[0].data.shape == (4, 8)
    assert found.place(*placed)[0] is placed[0]
    with pytest.raises(errors.InvalidArgumentError, match="structure"):
        found.place(W)


def test_arguments_that_live_elsewhere_are_moved():
    options = {"in_shardings": (None, PartitionSpec("x")), "out_shardings": PartitionSpec("x")}
    step = kiwi.jit(matmul, mesh_shape=(2, 4), verify=None, **options)
    elsewhere = jax.device_put(X, jax.devices()[5])
    result = step(W, elsewhere)
    np.testing.assert_allclose(result, matmul(W, X), rtol=1e-6)
    assert result.addressable_shards[0].data.shape == (32, 8)


@pytest.mark.parametrize("kind", ["mesh", "abstract"])
def test_an_existing_mesh_may_be_given(kind: str, make_mesh):
    mesh = make_mesh(2, 4, axis_names=("data", "model"))
    given = mesh if kind == "mesh" else mesh.abstract_mesh
    step = kiwi.jit(matmul, mesh=given, verify=None, in_shardings=(None, PartitionSpec("data")))
    result = step(W, X)
    assert step.plan(W, X).mesh.axis_names == ("data", "model")
    np.testing.assert_allclose(result, matmul(W, X), rtol=1e-6)


def test_a_mesh_over_some_devices_runs_on_these():
    devices = np.array(jax.devices()[4:6])
    mesh = jax.sharding.Mesh(devices, ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    result = kiwi.jit(matmul, mesh=mesh, verify=None)(W, X)
    assert result.sharding.device_set == set(devices)


def test_axis_names_name_the_axes():
    found = kiwi.plan(matmul, W, X, mesh_shape=(2, 4), axis_names=("a", "b"), verify=None)
    assert found.mesh.axis_names == ("a", "b")


def test_given_shardings_are_respected():
    found = plan_step(
        in_shardings=(None, PartitionSpec(("x", "y"))), out_shardings=(None, PartitionSpec())
    )
    assert set(found.in_shardings[1].values()) == {PartitionSpec(("x", "y"), None)}
    assert found.execution.mesh.size == 8


# Functions with regions, custom derivatives, randomness.


@jax.custom_vjp
def clipped(x):
    return x


clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))


def scan_step(w, x):
    return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), c.sum()), x, None, length=3)


FUNCTIONS = {
    "scan": lambda w, x: jax.value_and_grad(lambda w: scan_step(w, x)[0].sum())(w),
    "while": lambda w, x: jax.lax.while_loop(lambda c: c.sum() < 1e3, lambda c: c + w.sum(), x),
    "cond": lambda w, x: jax.lax.cond(x[0, 0] > 0, lambda: x @ w, lambda: x - w),
    "custom_vjp": lambda w, x: jax.grad(lambda w: clipped(x @ w).sum())(w),
    "checkpoint": lambda w, x: jax.grad(
        lambda w: jax.checkpoint(lambda w: jnp.sin(jnp.sin(x @ w) @ w))(w).sum()
    )(w),
    "dropout": lambda w, x: jax.grad(
        lambda w: (x @ w * jax.random.bernoulli(jax.random.key(3), 0.5, x.shape)).sum()
    )(w),
    "argument_as_result": lambda w, x: (w, x @ w, 3.0),
    "sort_and_index": lambda w, x: (jnp.sort(x)[:, :4], x[jnp.argmax(x @ w, 0)], jnp.cumsum(x, 0)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_all_kinds_run_planned_as_plain(name: str):
    function = FUNCTIONS[name]
    rng = np.random.default_rng(0)
    w, x = (rng.standard_normal((16, 16)).astype(np.float32) for _ in range(2))
    step = kiwi.jit(
        function, mesh_shape=(2, 4), verify=None, in_shardings=(None, PartitionSpec("x", "y"))
    )
    for got, wanted in zip(
        jax.tree.leaves(step(w, x)), jax.tree.leaves(jax.jit(function)(w, x)), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    assert not any("Planned whole" in note.text for note in step.plan(w, x).notes)


def test_keys_may_be_arguments():
    def function(key, x):
        return x * jax.random.bernoulli(key, 0.5, x.shape), jax.random.split(key)

    key = jax.random.key(1)
    step = kiwi.jit(
        function, mesh_shape=(2, 4), verify=None, out_shardings=(PartitionSpec("x"), None)
    )
    got, (next_key, _) = step(key, X)
    wanted, (wanted_key, _) = jax.jit(function)(key, X)
    np.testing.assert_array_equal(got, wanted)
    assert (jax.random.key_data(next_key) == jax.random.key_data(wanted_key)).all()


# Bad input.


def check_error(kind, call, *words) -> errors.KiwiError:
    with pytest.raises(kind) as caught:
        call()
    error = caught.value
    assert isinstance(error, errors.KiwiError) and (error.cause or error.suggestion)
    for word in words:
        assert word in str(error)
    return error


def test_a_budget_below_any_plan_names_the_smallest_found():
    call = lambda: plan_step(memory_budget="1KiB", time_limit_seconds=10)  # noqa: E731
    error = check_error(errors.InfeasibleBudgetError, call, "1.00 KiB")
    assert isinstance(error, errors.InfeasibleBudgetError)
    least = error.least_peak_bytes
    assert least is not None and least > 1024 and size_above(least) in error.suggestion
    found = plan_step(memory_budget=int(1.2 * least), time_limit_seconds=10)
    assert found.estimate.peak_bytes <= 1.2 * least


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (errors.UnknownProfileError, {"profile": "h100"}, ["'h100'", "h100-sxm"]),
        (errors.UnknownPlannerError, {"planner": "magic"}, ["'magic'", "joint"]),
        (errors.UnknownSolverError, {"solver": "cplex"}, ["'cplex'", "highs"]),
        (errors.InvalidSizeError, {"memory_budget": "16 gigs"}, ["'16 gigs'", "16GiB"]),
        (errors.InvalidSizeError, {"memory_budget": 0}, ["0", "not positive"]),
        (errors.InvalidMeshError, {"mesh_shape": (0, 4)}, ["(0, 4)"]),
        (errors.InvalidMeshError, {"axis_names": ("x",)}, ["('x',)"]),
        (errors.InvalidArgumentError, {"verify": "gpu"}, ["'gpu'", "'cpu'"]),
        (errors.ShardingConflictError, {"in_shardings": PartitionSpec("q")}, ["'q'"]),
        (errors.ShardingConflictError, {"in_shardings": (None,) * 3}, ["in_shardings"]),
        (errors.ShardingConflictError, {"out_shardings": PartitionSpec("x")}, ["result"]),
        (errors.InvalidArgumentError, {"donate_argnums": 7}, ["7"]),
    ],
)
def test_bad_options_are_refused_with_value_and_advice(kind, options, words):
    check_error(kind, lambda: plan_step(**options), *words)


def test_a_time_limit_that_is_not_positive_is_refused():
    with pytest.raises(errors.InvalidArgumentError, match="time_limit_seconds=0"):
        plan_step(time_limit_seconds=0)


def test_options_are_checked_when_the_function_is_made():
    with pytest.raises(errors.UnknownPlannerError):
        kiwi.jit(matmul, mesh_shape=(2, 4), planner="magic")


def test_a_mesh_larger_than_the_devices_plans_but_does_not_run():
    step = kiwi.jit(matmul, mesh_shape=(4, 4), verify=None)
    assert step.plan(W, X).mesh.size == 16
    check_error(errors.NotEnoughDevicesError, lambda: step(W, X), "16 devices; 8", "cpu")


def test_a_function_without_array_argument_is_refused():
    check_error(errors.InvalidFunctionError, lambda: kiwi.plan(lambda: 1.0, mesh_shape=(2, 4)))


def test_something_else_than_a_function_is_refused():
    check_error(errors.InvalidArgumentError, lambda: kiwi.jit((2, 4)), "tuple")


def test_a_misspelt_option_is_no_argument_of_the_function():
    with pytest.raises(errors.InvalidArgumentError, match="no option 'memory_buget'") as caught:
        kiwi.plan(lambda x: x * 2, array(8, 8), mesh_shape=(2, 4), memory_buget="1GiB")
    assert caught.value.suggestion == "memory_budget="
    with pytest.raises(errors.InvalidArgumentError, match="no option 'colour'"):
        kiwi.plan(lambda x: x * 2, array(8, 8), mesh_shape=(2, 4), colour="red")


def test_a_method_can_be_planned():
    class Model:
        scale = 3.0

        @kiwi.jit(mesh_shape=(2, 4), profile="cpu", verify=None, static_argnums=0)
        def __call__(self, x):
            return self.scale * x

    np.testing.assert_allclose(Model()(np.ones((8, 8))), 3 * np.ones((8, 8)))


def test_diff_says_how_a_file_is_read():
    with pytest.raises(errors.InvalidArgumentError, match="not str") as caught:
        kiwi.diff("a.json", "b.json")  # type: ignore[arg-type]
    assert "load_plan" in str(caught.value)


def test_an_error_of_jax_while_tracing_names_the_users_function():
    def chooses(x):
        return x if x.sum() > 0 else -x

    with pytest.raises(jax.errors.TracerBoolConversionError, match="function chooses at") as caught:
        kiwi.plan(chooses, array(8, 8), mesh_shape=(2, 4), verify=None)
    assert "test_api.py" in str(caught.value)


def test_mesh_and_mesh_shape_together_are_refused(make_mesh):
    call = lambda: kiwi.jit(matmul, mesh=make_mesh(2, 4), mesh_shape=(2, 4))  # noqa: E731
    check_error(errors.InvalidArgumentError, call, "mesh_shape")


def test_dimensions_that_no_axis_divides_are_replicated_and_noted():
    found = kiwi.plan(matmul, array(7, 5), array(3, 7), mesh_shape=(2, 4), verify=None)
    assert found.in_shardings == (PartitionSpec(None, None), PartitionSpec(None, None))
    assert any("No mesh axis (sizes 2, 4)" in n.text and "(7, 5)" in n.text for n in found.notes)


def test_a_short_time_limit_returns_a_plan_with_its_gap_or_says_that_none_was_found():
    try:
        found = plan_step(time_limit_seconds=0.001, memory_budget="40KiB")
    except errors.NoPlanFoundError as error:
        assert "0.001" in error.what and "time_limit_seconds" in error.suggestion
    except errors.InfeasibleBudgetError as error:
        pytest.fail(f"a time-out is no proof: {error}")
    else:
        assert found.solve_result.gap is not None and found.estimate.peak_bytes <= 40 * 1024


# Interruption, and what import leaves alone.


@pytest.fixture
def kiwi_folders(tmp_path, monkeypatch):
    """Returns a function that lists the temporary folders of this test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return lambda: {p.name for p in tmp_path.glob("kiwi-*")}


def children() -> set[str]:
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {child for task in tasks for child in task.read_text().split()}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
def test_an_interrupted_search_leaves_nothing_behind(kiwi_folders):
    def interrupt(_progress):
        raise KeyboardInterrupt

    before = kiwi_folders(), children()
    step = kiwi.jit(STEP, mesh_shape=(2, 4), verify=None, on_progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        step.plan(STATE, BATCH)
    assert (kiwi_folders(), children()) == before
    assert plan_step().decisions


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
def test_an_interrupted_check_leaves_nothing_behind(kiwi_folders, monkeypatch):
    before = kiwi_folders(), children()
    wait = subprocess.Popen.wait

    def interrupted(self, *args, **kwargs):
        monkeypatch.setattr(subprocess.Popen, "wait", wait)
        assert kiwi_folders() - before[0]
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kiwi.plan(matmul, W, X, mesh_shape=(4, 4), verify="cpu")
    assert (kiwi_folders(), children()) == before


IMPORT = """
import logging, jax
before = dict(jax.config.values), list(logging.root.handlers), logging.root.level
import kiwi
values = {name: jax.config.values[name] for name in before[0]}  # Kiwi adds one of its own.
assert (values, list(logging.root.handlers), logging.root.level) == before
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
import jax.numpy as jnp
shape = jax.ShapeDtypeStruct((8, 8), "float32")
kiwi.plan(lambda x: x @ x, shape, mesh_shape=(2, 4), verify=None)
assert {name: jax.config.values[name] for name in before[0]} == before[0]
print("unchanged")
"""


def test_import_changes_nothing_global():
    environment = {**os.environ, "PYTHONPATH": str(Path(kiwi.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "unchanged", done.stderr


def test_an_array_that_stands_for_several_donated_arguments_is_copied():
    """A device takes over the array that it has, and XLA takes none twice."""
    step = kiwi.jit(
        lambda weights, x: [w - x.mean() for w in weights],
        mesh_shape=(8,),
        verify=None,
        donate_argnums=0,
        in_shardings=([PartitionSpec()] * 3, PartitionSpec()),
    )
    shared = jnp.ones((64, 64))
    for found in step([shared] * 3, jnp.full((8,), 0.5)):
        np.testing.assert_array_equal(found, np.full((64, 64), 0.5))
