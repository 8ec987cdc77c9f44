"""Pins of arguments and values: the options that they exclude, and the errors of impossible
pins."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import kiwi
from kiwi.calls.constraints import Constraints, constraints_of_text, matches, slash_path
from kiwi.errors import InfeasibleBudgetError, InvalidArgumentError, ShardingConflictError
from tests.helpers.planning import array

WIDTH, ROWS, LAYERS = 64, 256, 3


def make_step(hints=None):
    """Returns a step of an MLP. `hints[k]` are the options of a hint on layer k."""

    def loss(params, batch):
        x, y = batch
        for k in range(LAYERS):
            layer = params[f"l{k}"]
            x = jnp.tanh(x @ layer["w"] + layer["b"])
            if k in (hints or {}):
                x = kiwi.hint(x, name=f"layer {k}", **hints[k])
        return ((x - y) ** 2).mean()

    def step(params, batch):
        value, gradients = jax.value_and_grad(loss)(params, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    return step


def abstract_args(rows=ROWS):
    params = {f"l{k}": {"w": array(WIDTH, WIDTH), "b": array(WIDTH)} for k in range(LAYERS)}
    return params, (array(rows, WIDTH), array(rows, WIDTH))


def texts(found):
    return [note.text for note in found.notes]


def plan(hints=None, **options):
    options = {"mesh_shape": (4,), "verify": None, "memory_budget": "1GiB", **options}
    return kiwi.plan(make_step(hints), *abstract_args(), **options)


def layer_decisions(found):
    return [d for d in found.decisions if d.opcode == "tanh" and d.phase == "forward"]


def test_paths_and_patterns():
    assert slash_path("state.params['w']") == "state/params/w"
    assert slash_path("batch[0]") == "batch/0"
    assert matches("params/**", "params/l0/w")
    assert matches("**/w", "params/l0/w")
    assert matches("params/l*/w", "params/l0/w")
    assert not matches("params/*", "params/l0/w")
    assert not matches("l0/w", "params/l0/w")


def test_arguments_lie_as_pinned_and_the_first_pattern_counts():
    pins = {"params/l0/w": P(None, "x"), "**/w": P("x", None), "batch/0": P()}
    (params, batch) = plan(constraints=Constraints(pins)).in_shardings
    assert params["l0"]["w"] == P(None, "x")
    assert params["l1"]["w"] == params["l2"]["w"] == P("x", None)
    assert batch[0] == P(None, None)


def test_none_and_unconstrained_leave_open_what_they_stand_for():
    pins = {"params/l0/w": None, "**/w": P(P.UNCONSTRAINED, None)}
    params, _ = plan(constraints=Constraints(pins, ("**/w",))).in_shardings
    assert params["l1"]["w"] == P("x", None)
    assert any(params["l0"]["w"])


def test_parameters_are_not_replicated_where_that_is_forbidden():
    free, _ = plan().in_shardings
    assert not any(any(spec) for spec in jax.tree.leaves(free, is_leaf=lambda s: type(s) is P))
    params, _ = plan(constraints=Constraints(forbid_replicated=("params/**",))).in_shardings
    assert all(any(spec) for spec in jax.tree.leaves(params, is_leaf=lambda s: type(s) is P))


def test_a_hinted_value_lies_as_pinned():
    for spec in (P("x", None), P(None, "x"), P(None, None)):
        found = plan({1: {"sharding": spec}})
        assert layer_decisions(found)[1].sharding == spec


def test_hinted_residencies_hold_whatever_is_cheaper():
    generous = plan({0: {"recompute": True}})
    assert [d.residency for d in layer_decisions(generous)[:2]] == ["recompute", "keep"]
    assert generous.residency_counts()["recompute"] == 1
    tight = 0.92 * plan(mesh_shape=(1,)).peak_bytes
    freely = plan(mesh_shape=(1,), memory_budget=int(tight))
    dropped = [k for k, d in enumerate(layer_decisions(freely)) if d.residency == "recompute"]
    assert dropped
    pinned = dropped[0]
    # It is what lets the step fit: kept as pinned, nothing does, and the pin is to blame.
    with pytest.raises(InfeasibleBudgetError, match=f"without hint 'layer {pinned}'"):
        plan({pinned: {"keep": True}}, mesh_shape=(1,), memory_budget=int(tight))


def test_a_plan_with_pins_gives_the_numbers_of_the_function():
    hints = {0: {"recompute": True}, 1: {"sharding": P(None, "x"), "keep": True}}
    constraints = Constraints({"params/l0/w": P(None, "x")}, ("params/**",))
    args = jax.tree.map(
        lambda s: np.random.default_rng(0).standard_normal(s.shape).astype(s.dtype), abstract_args()
    )
    step = kiwi.jit(make_step(hints), mesh_shape=(4,), verify=None, constraints=constraints)
    got, expected = step(*args), jax.jit(make_step())(*args)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), got, expected)


@pytest.mark.parametrize(
    ("hints", "constraints", "error", "message"),
    [
        ({}, Constraints({"none/**": P()}), InvalidArgumentError, "'none/\\*\\*'.* matches no arg"),
        ({}, Constraints({"params/l0/w": P("z")}), ShardingConflictError, "params/l0/w.* axis 'z'"),
        ({}, Constraints({"**/b": P("x", None)}), ShardingConflictError, "2 entries"),
        (
            {},
            Constraints({"**/b": P()}, ("params/**",)),
            ShardingConflictError,
            r"shardings\['\*\*/b'\] and forbid_replicated\['params/\*\*'\] leave no sharding",
        ),
        ({0: {"sharding": P("q")}}, Constraints(), ShardingConflictError, r"'layer 0' at .*test"),
    ],
)
def test_an_impossible_pin_is_named(hints, constraints, error, message):
    with pytest.raises(error, match=message):
        plan(hints, constraints=constraints)


def test_what_can_only_be_replicated_is_named_where_that_is_forbidden():
    with pytest.raises(ShardingConflictError, match="which can only be replicated"):
        kiwi.plan(
            lambda x, y: (x * y).sum(),
            array(3, 5),
            array(),
            mesh_shape=(4,),
            verify=None,
            constraints=Constraints(forbid_replicated="x"),
        )


def test_a_sharding_that_no_strategy_yields_is_named_with_the_reason():
    def f(x):
        return kiwi.hint(jnp.sort(x, axis=0), sharding=P("x", None), name="sorted") * 2.0

    with pytest.raises(ShardingConflictError, match=r"'sorted'.*no sharding strategy") as caught:
        kiwi.plan(f, array(8, 8), mesh_shape=(4,), verify=None)
    assert "must be whole on every device" in caught.value.cause


def test_what_cannot_be_recomputed_is_named_with_the_reason():
    def f(x):
        return kiwi.hint(jnp.tanh(x), recompute=True, name="result")

    with pytest.raises(InvalidArgumentError, match="'result'") as caught:
        kiwi.plan(f, array(8, 8), mesh_shape=(1,), verify=None)
    assert caught.value.cause == "It is a result of the function."
    with pytest.raises(InvalidArgumentError, match="to recompute an argument"):
        kiwi.plan(
            lambda x: kiwi.hint(x, recompute=True) * 2.0, array(8), mesh_shape=(1,), verify=None
        )


def test_hints_that_contradict_each_other_are_both_named():
    def f(x):
        y = kiwi.hint(jnp.tanh(x), sharding=P("x", None), name="one")
        return kiwi.hint(y, sharding=P(None, "x"), name="two").sum()

    with pytest.raises(ShardingConflictError, match=r"'one'.* and .*'two'.* contradict"):
        kiwi.plan(f, array(8, 8), mesh_shape=(4,), verify=None)


def test_in_shardings_and_pins_that_contradict_are_named():
    with pytest.raises(ShardingConflictError, match=r"in_shardings gives .*shardings\['x'\]"):
        kiwi.plan(
            lambda x: x * 2.0,
            array(8, 8),
            mesh_shape=(4,),
            verify=None,
            in_shardings=(P("x", None),),
            constraints=Constraints({"x": P(None, "x")}),
        )


def test_memory_that_devices_do_not_read_is_refused(make_mesh):
    sharding = NamedSharding(make_mesh(4), P("x"), memory_kind="unpinned_host")
    for options in ({"in_shardings": (sharding,)}, {"constraints": Constraints({"x": sharding})}):
        with pytest.raises(ShardingConflictError, match="in the memory 'unpinned_host'"):
            kiwi.plan(lambda x: x * 2.0, array(8), mesh_shape=(4,), verify=None, **options)


def test_an_infeasible_budget_names_the_pins_that_make_it_so():
    constraints = Constraints({"batch/*": P(), "params/l0/b": P("x")})
    with pytest.raises(InfeasibleBudgetError) as caught:
        plan(constraints=constraints, memory_budget=150_000)
    assert "without shardings['batch/*']" in caught.value.cause
    assert "params/l0/b" not in caught.value.cause


def test_an_infeasible_budget_without_guilty_pins_blames_none():
    with pytest.raises(InfeasibleBudgetError) as caught:
        plan(constraints=Constraints({"params/l0/b": P("x")}), memory_budget=20_000)
    assert "shardings" not in caught.value.cause


def test_planners_that_heed_no_hints_say_so():
    found = plan({0: {"sharding": P("x")}}, planner="alpa+dots", mesh_shape=(2,))
    assert "The planner 'alpa+dots' heeds no hints: 1 are not read." in texts(found)
    found = plan({0: {"recompute": True}}, planner="alpa", mesh_shape=(2,))
    assert "The planner 'alpa' heeds no hints to keep or to recompute." in texts(found)


def test_saved_plans_keep_their_constraints(tmp_path):
    constraints = Constraints({"**/w": P(P.UNCONSTRAINED, None), "**/b": None}, ("params/**",))
    found = plan(constraints=constraints)
    found.save(tmp_path / "plan.json")
    applied = kiwi.load_plan(tmp_path / "plan.json").apply(make_step()).plan(*abstract_args())
    assert applied.origin is not None
    assert applied.origin.settings.constraints == constraints
    assert applied.in_shardings == found.in_shardings


def test_constraints_of_the_command_line():
    found = constraints_of_text(["params/**=x,-", "batch/0=x+y,?"], ["**/w"])
    assert found.shardings == {"params/**": P("x", None), "batch/0": P(("x", "y"), P.UNCONSTRAINED)}
    assert found.forbid_replicated == ("**/w",)
    with pytest.raises(InvalidArgumentError, match="has no sharding"):
        constraints_of_text(["params"], [])
