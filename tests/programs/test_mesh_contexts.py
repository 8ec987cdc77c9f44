"""Planning and running under any mesh of the context: none, Auto, Explicit, mixed axes."""

import contextlib
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import kiwi
from kiwi.errors import InfeasibleBudgetError, InvalidFunctionError

BATCH, WIDTH, HIDDEN = 32, 16, 64
OPTIONS = {"verify": None, "memory_budget": "1GiB", "profile": "h100-sxm", "effort": "quick"}
AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
KINDS = {
    "none": None,
    "auto": (AUTO, AUTO),
    "explicit": (EXPLICIT, EXPLICIT),
    "mixed": (EXPLICIT, AUTO),
}


@functools.cache
def mesh_of(kind: str) -> jax.sharding.Mesh | None:
    types = KINDS[kind]
    return None if types is None else jax.make_mesh((2, 4), ("data", "model"), axis_types=types)


def abstract(shape, names):
    return jax.sharding.AbstractMesh(shape, names, axis_types=(AUTO,) * len(shape))


def context(kind: str):
    mesh = mesh_of(kind)
    return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def loss(w, x):
    return jnp.mean((x - jax.nn.gelu(x @ w["up"]) @ w["down"]) ** 2)


def asking_loss(kind, w, x):
    """`loss` with the constraints that each kind of axes allows."""
    if kind == "none":
        return loss(w, x)
    if kind == "auto":
        h = jax.lax.with_sharding_constraint(jax.nn.gelu(x @ w["up"]), P("data", "model"))
        return jnp.mean((x - h @ w["down"]) ** 2)
    wide = P("data", "model") if kind == "explicit" else P("data")
    h = jnp.einsum("bd,df->bf", x, w["up"], out_sharding=wide)
    y = jnp.einsum("bf,fd->bd", jax.nn.gelu(h), w["down"], out_sharding=P("data"))
    return jnp.mean((x - jax.sharding.reshard(y, P("data"))) ** 2)


@functools.cache
def step_of(kind: str):
    optimizer = optax.sgd(0.1, momentum=0.9)

    def step(state, x):
        w, moments = state
        value, gradient = jax.value_and_grad(functools.partial(asking_loss, kind))(w, x)
        updates, moments = optimizer.update(gradient, moments, w)
        return (optax.apply_updates(w, updates), moments), value

    return step, optimizer


def plain_arguments():
    keys = jax.random.split(jax.random.key(0), 3)
    w = {
        "up": jax.random.normal(keys[0], (WIDTH, HIDDEN)),
        "down": jax.random.normal(keys[1], (HIDDEN, WIDTH)),
    }
    w = jax.tree.map(np.asarray, w)
    return w, np.asarray(jax.random.normal(keys[2], (BATCH, WIDTH)))


@functools.cache
def expected() -> list[float]:
    """Returns the losses of two steps."""
    (w, x), (step, optimizer) = plain_arguments(), step_of("none")
    state, losses = (w, optimizer.init(w)), []
    for _ in range(2):
        state, value = jax.jit(step)(state, x)
        losses.append(float(value))
    return losses


SPECS = {"up": P(None, "model"), "down": P("model", None)}


def arguments(kind: str, form: str):
    """Returns the state and the batch as arrays, as shapes, or as either with shardings."""
    w, x = plain_arguments()
    mesh = mesh_of(kind if kind != "none" else "auto")
    is_cut = form.endswith("sharded")
    on = lambda a, spec: jax.device_put(a, NamedSharding(mesh, spec)) if is_cut else jnp.array(a)  # noqa: E731
    w = {name: on(a, SPECS[name]) for name, a in w.items()}
    state, x = (w, step_of(kind)[1].init(w)), on(x, P("data", None))
    if form.startswith("shapes"):
        sharding = lambda a: a.sharding if is_cut else None  # noqa: E731
        as_shape = lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding(a))  # noqa: E731
        state, x = jax.tree.map(as_shape, (state, x))
    return state, x


def run_twice(planned, kind: str, form: str):
    state, x = arguments(kind, form)
    losses = []
    for _ in range(2):
        state, value = planned(state, x)
        losses.append(float(value))
    np.testing.assert_allclose(losses, expected(), rtol=1e-4)
    return state


def check_results(state, kind: str):
    """Checks that results are on the user's mesh, and that other programs accept them."""
    mesh = mesh_of(kind)
    if mesh is not None:
        assert {leaf.sharding.mesh for leaf in jax.tree.leaves(state)} == {mesh}
    own = jnp.ones((WIDTH, HIDDEN))
    mixed = jax.jit(lambda a, b: a + 0.1 * b)(state[0]["up"], own) + state[0]["up"]
    assert mixed.shape == (WIDTH, HIDDEN)


MATRIX = list(itertools.product(KINDS, ["arrays", "arrays-sharded"]))


@pytest.mark.parametrize(("kind", "form"), MATRIX, ids=map("-".join, MATRIX))
def test_jit_runs_under_any_context(kind: str, form: str):
    with context(kind):
        mesh_shape = (2, 4) if kind == "none" else None
        planned = kiwi.jit(step_of(kind)[0], donate_argnums=0, mesh_shape=mesh_shape, **OPTIONS)
        check_results(run_twice(planned, kind, form), kind)
        assert len(planned._plans) == 1  # Results of the plan are arguments of the same plan.


PLANNED = list(itertools.product(KINDS, ["arrays", "shapes", "shapes-sharded"]))


@pytest.mark.parametrize(("kind", "form"), PLANNED, ids=map("-".join, PLANNED))
def test_a_plan_is_saved_and_applied_under_any_context(kind: str, form: str, tmp_path):
    step, path = step_of(kind)[0], tmp_path / "plan.json"
    with context(kind):
        mesh_shape = (2, 4) if kind == "none" else None
        given = {"donate_argnums": 0, "mesh_shape": mesh_shape, **OPTIONS}
        plan = kiwi.plan(step, *arguments(kind, form), **given)
        if kind != "none":
            assert plan.mesh.axis_names == ("data", "model")
        if form == "shapes-sharded" and kind != "none":
            assert plan.in_shardings[0][0]["up"] == SPECS["up"]
            free = kiwi.plan(step, *arguments(kind, form), respect_user_shardings=False, **given)
            assert free.estimate.step_seconds <= plan.estimate.step_seconds
            without = plan.without_user_shardings()
            assert without.estimate.step_seconds <= plan.estimate.step_seconds
        plan.save(path)
        applied = kiwi.load_plan(path).apply(step)
        check_results(run_twice(applied, kind, "arrays"), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_the_compile_check_is_under_no_mesh(kind: str):
    with context(kind):
        options = {**OPTIONS, "profile": "cpu", "verify": "cpu"}
        planned = kiwi.jit(step_of(kind)[0], donate_argnums=0, mesh_shape=(2, 4), **options)
        check_results(run_twice(planned, kind, "arrays"), kind)
        (plan,) = planned._plans.values()
        assert plan.compiled is not None and plan.lower().as_text()


@pytest.mark.parametrize("planner", ["xla", "alpa", "two-stage", "alpa+dots"])
def test_other_planners_under_explicit_axes(planner: str):
    step = step_of("explicit")[0]
    with context("explicit"):
        planned = kiwi.jit(step, planner=planner, open_loops=False, **OPTIONS)
        run_twice(planned, "explicit", "arrays-sharded")


def test_one_function_under_several_contexts():
    """Each context has a plan of its own, whose results are of its kind."""
    w, x = plain_arguments()
    planned = kiwi.jit(jax.value_and_grad(loss), mesh_shape=(2, 4), **OPTIONS)
    for kind in ("explicit", "none", "auto", "explicit"):
        with context(kind):
            (_, gradient) = planned(w, x)
            mesh = mesh_of(kind)
            assert mesh is None or gradient["up"].sharding.mesh == mesh
    assert len(planned._plans) == 3


def test_a_plan_of_another_shape_than_the_contexts():
    with context("explicit"):
        value, _ = kiwi.jit(jax.value_and_grad(loss), mesh_shape=(8,), **OPTIONS)(
            *plain_arguments()
        )
    assert value.shape == ()


def test_a_plan_runs_outside_of_the_context_it_was_made_in():
    planned = kiwi.jit(step_of("none")[0], mesh=mesh_of("explicit"), **OPTIONS)
    state = run_twice(planned, "none", "arrays")
    with context("explicit"):
        run_twice(planned, "explicit", "arrays")
    assert jax.typeof(state[0]["up"]).sharding.mesh.are_all_axes_explicit


# What is asked.


def asking(x):
    return jnp.sum(jax.lax.with_sharding_constraint(jnp.tanh(x), P("data", "model")))


def asking_explicitly(x):
    return jnp.sum(jax.sharding.reshard(jnp.tanh(x), P("data", "model")))


def mapped_without_mesh(x):
    total = jax.shard_map(
        lambda x: jax.lax.psum(jnp.sum(x), ("data", "model")),
        in_specs=P("data", "model"),
        out_specs=P(),
    )
    return total(jnp.tanh(x))


X = jax.ShapeDtypeStruct((64, 64), "float32")


@pytest.mark.parametrize("function", [asking, asking_explicitly, mapped_without_mesh])
def test_bare_specs_without_a_context_name_the_axes_of_the_plan(function):
    names = ("data", "model")
    plan = kiwi.plan(function, X, mesh_shape=(2, 4), axis_names=names, **OPTIONS)
    assert plan.in_shardings == (P("data", "model"),)
    free = {**OPTIONS, "respect_user_shardings": False}
    assert kiwi.plan(function, X, mesh_shape=(2, 4), axis_names=names, **free).fits


def test_an_unknown_axis_is_refused_with_the_names_of_the_mesh():
    with pytest.raises(InvalidFunctionError, match=r"'data'; the mesh has x,y[\s\S]*axis_names"):
        kiwi.plan(asking, X, mesh_shape=(2, 4), **OPTIONS)


def test_a_collective_over_an_axis_that_nothing_binds_is_refused():
    function = lambda x: jax.lax.pmean(jnp.sum(x), "data")  # noqa: E731
    with pytest.raises(InvalidFunctionError, match=r"axis 'data' in a collective[\s\S]*shard_map"):
        kiwi.plan(function, X, mesh_shape=(2, 4), axis_names=("data", "model"), **OPTIONS)


def test_other_errors_of_the_function_stay_as_they_are():
    with pytest.raises(TypeError, match="dot_general"):
        kiwi.plan(lambda x: x @ jnp.ones((3, 3)), X, mesh_shape=(8,), **OPTIONS)


def test_what_is_pinned_is_said():
    def function(x):
        x = jax.lax.with_sharding_constraint(jnp.tanh(x), P())
        return jnp.sum(jax.lax.with_sharding_constraint(x @ x, P("data")))

    with context("auto"):
        plan = kiwi.plan(function, X, **OPTIONS)
        free = kiwi.plan(function, X, respect_user_shardings=False, **OPTIONS)
    (note,) = [n for n in plan.notes if "pinned" in n.text]
    assert note.text.startswith("2 values are pinned") and "1 of them replicated" in note.text
    assert not any("pinned" in n.text for n in free.notes)


# Kernels in manual computations.


def attention(q, k, v):
    scores = jax.nn.softmax(jnp.einsum("bhsd,bhtd->bhst", q, k))
    return jnp.einsum("bhst,bhtd->bhsd", scores, v)


RULED = kiwi.sharding_rule(
    attention, "b h s d, b h t d, b h t d -> b h s d", need_replication_factors=("s", "t", "d")
)


def around_kernel(body, spec):
    def step(w, x):
        def loss(w):
            q = jnp.einsum("bsd,dhk->bhsk", x, w)
            mapped = jax.shard_map(
                body,
                mesh=abstract((2, 4), ("data", "model")),
                in_specs=(spec,) * 3,
                out_specs=spec,
                check_vma=False,
            )
            return jnp.mean(mapped(q, q, q) ** 2)

        return jax.grad(loss)(w)

    return step


def summed(q, k, v):
    return RULED(q, k, v) + jnp.sum(q)


def rolled(q, k, v):
    return RULED(jnp.roll(q, 1, 0), k, v)


@pytest.mark.parametrize(
    ("body", "spec", "is_opened"),
    [
        (RULED, P("data", "model"), True),
        (lambda q, k, v: RULED(0.5 * q, k, v), P("data", "model"), True),
        (RULED, P(("data", "model")), True),
        (RULED, P("data", None, "model"), False),  # The rule does not shard the positions.
        (summed, P("data", "model"), False),  # Each device adds a sum of its own.
        (rolled, P("data"), False),
        (attention, P("data", "model"), False),  # Nothing is known of it.
    ],
)
def test_manual_computations_around_kernels_are_left_out(body, spec, is_opened):
    w, x = np.ones((16, 4, 8), "f"), np.random.default_rng(0).normal(size=(8, 8, 16)).astype("f")
    options = {"mesh_shape": (2, 4), "axis_names": ("data", "model"), **OPTIONS}
    planned = kiwi.jit(around_kernel(body, spec), respect_user_shardings=False, **options)
    names = {e.name for e in planned.traced(w, x).program.equations}
    assert ("shard_map" not in names) == is_opened
    if is_opened:
        kept = kiwi.jit(around_kernel(body, spec), **options)
        assert "shard_map" in {e.name for e in kept.traced(w, x).program.equations}
        step = jax.grad(lambda w: jnp.mean(body(*[jnp.einsum("bsd,dhk->bhsk", x, w)] * 3) ** 2))
        np.testing.assert_allclose(planned(w, x), step(w), rtol=1e-4, atol=1e-5)


# pmap, and manual computations over other meshes.


@pytest.mark.parametrize("mesh_shape", [(8,), (2, 4)])
def test_pmap_is_planned_along_its_axis(mesh_shape):
    @functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0), out_axes=(None, 0))
    def step(w, x):
        value, gradient = jax.value_and_grad(loss)(w, x)
        gradient = jax.tree.map(lambda g: jax.lax.pmean(g, "batch"), gradient)
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, gradient), value

    w, x = plain_arguments()
    parts = x.reshape(8, -1, WIDTH)
    planned = kiwi.jit(step, mesh_shape=mesh_shape, **OPTIONS)
    axes = planned.plan(w, parts).in_shardings[1][0]
    assert axes == ("x" if mesh_shape == (8,) else ("x", "y"))
    found, wanted = planned(w, parts), step(w, parts)
    for left, right in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)


def test_pmap_over_another_number_of_devices_says_how_to_migrate():
    mapped = jax.pmap(lambda x: jax.lax.pmean(x, "i"), axis_name="i")
    with pytest.raises(InvalidFunctionError, match=r"pmap[\s\S]*without pmap"):
        kiwi.plan(mapped, jax.ShapeDtypeStruct((16, 4), "float32"), mesh_shape=(8,), **OPTIONS)


def mapped_over(mesh, spec):
    return jax.shard_map(lambda x: jnp.tanh(x @ x.T) @ x, mesh=mesh, in_specs=spec, out_specs=spec)


@pytest.mark.parametrize(
    ("theirs", "spec", "expected"),
    [
        (abstract((8,), ("fsdp",)), P("fsdp"), P(("data", "model"), None)),
        (abstract((2, 4), ("a", "b")), P(("a", "b")), P(("data", "model"), None)),
        (abstract((1, 8), ("a", "b")), P("b"), P(("data", "model"), None)),
        (abstract((2, 1, 4), ("a", "b", "c")), P("c"), P("model", None)),
    ],
    ids=str,
)
def test_a_manual_computation_over_a_mesh_made_of_the_plans_axes(theirs, spec, expected):
    function = mapped_over(theirs, spec)
    options = {"mesh_shape": (2, 4), "axis_names": ("data", "model"), **OPTIONS, "verify": "cpu"}
    planned = kiwi.jit(function, **options)
    x = np.random.default_rng(0).normal(size=(64, 16)).astype("f")
    assert planned.plan(x).in_shardings == (expected,)
    own = jax.make_mesh(theirs.axis_sizes, theirs.axis_names, axis_types=theirs.axis_types)
    np.testing.assert_allclose(planned(x), mapped_over(own, spec)(x), rtol=1e-4, atol=1e-5)


def test_a_refusal_names_manual_computations_over_other_meshes():
    theirs = abstract((4, 2), ("a", "b"))
    x = jax.ShapeDtypeStruct((4096, 4096), "float32")
    options = {"mesh_shape": (2, 4), **OPTIONS}
    plan = kiwi.plan(mapped_over(theirs, P("a")), x, **options)
    assert any("over the mesh a=4, b=2" in note.text for note in plan.notes)
    options["memory_budget"] = "80MiB"
    with pytest.raises(InfeasibleBudgetError, match=r"shard_map at .*a=4, b=2[\s\S]*mesh=the mesh"):
        kiwi.plan(mapped_over(theirs, P("a")), x, **options)


def test_arguments_along_explicit_axes_bring_their_mesh():
    mesh = mesh_of("explicit")

    def layer(x, w):
        return jnp.einsum("bd,df->bf", x, w, out_sharding=P("data", None)), None

    def step(ws, x):
        y, _ = jax.lax.scan(layer, x, ws)
        return jnp.mean(y)

    ws = jax.device_put(jnp.ones((2, 16, 16)) / 16, NamedSharding(mesh, P(None, "data")))
    x = jax.device_put(jnp.ones((32, 16)), NamedSharding(mesh, P("data")))
    for given in ({"mesh": mesh}, {"mesh_shape": (2, 4)}):
        assert np.isclose(kiwi.jit(step, **given, **OPTIONS)(ws, x), 1.0)
