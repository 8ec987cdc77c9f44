"""Signatures of calls, as `jax.jit` understands them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from kiwi.calls.signature import JitOptions, bind, flatten_prefix, to_tensor_sharding
from kiwi.errors import InvalidArgumentError, InvalidFunctionError, ShardingConflictError
from kiwi.mesh import DeviceMesh
from kiwi.options import Options

X = np.ones((4, 8), np.float32)


def options_of(fun, **given) -> JitOptions:
    return JitOptions.of(fun, vars(Options(**given)))


def call_of(fun, *args: Any, options: dict[str, Any] | None = None, **kwargs: Any):
    return bind(fun, options_of(fun, **(options or {})), args, kwargs)


def step(state, batch, scale=1.0, *, train=True):
    total = state["w"] * scale + batch if train else state["w"] - batch
    return {"w": total}, total.sum()


@pytest.mark.parametrize(
    "given", [{"static_argnums": 2}, {"static_argnums": (-1,)}, {"static_argnames": "scale"}]
)
def test_static_numbers_and_names_complete_each_other(given):
    options = options_of(step, **given)
    assert options.static_argnums == (2,) and options.static_argnames == ("scale",)


@pytest.mark.parametrize(
    "given", [{"donate_argnums": (0, 1)}, {"donate_argnames": ("state", "batch")}]
)
def test_donated_numbers_and_names_complete_each_other(given):
    options = options_of(step, **given)
    assert options.donate_argnums == (0, 1) and options.donate_argnames == ("batch", "state")


def test_keyword_only_arguments_are_named():
    options = options_of(step, static_argnames=("train", "scale"))
    assert options.static_argnums == (2,) and options.static_argnames == ("scale", "train")


def test_an_argument_both_static_and_donated_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"static and donated.*batch"):
        options_of(step, static_argnums=1, donate_argnames="batch")


@pytest.mark.parametrize("number", [3, -4, 17])
def test_a_number_without_argument_is_refused(number: int):
    with pytest.raises(InvalidArgumentError, match=f"number {number} does not exist.* 3"):
        options_of(step, donate_argnums=number)


def test_leaves_have_names_as_the_user_would_write_them():
    call = call_of(lambda state, *rest, **more: 0, {"w": [X]}, X, key=(X,))
    assert call.paths == ("state['w'][0]", "args[1]", "key[0]")


def test_the_flat_function_computes_the_call():
    call = call_of(step, {"w": X}, X, 3.0, train=False, options={"static_argnames": "train"})
    (new, total) = call.function(*call.leaves)
    np.testing.assert_array_equal(new["w"], step({"w": X}, X, 3.0, train=False)[0]["w"])
    assert total == 0.0 and len(call.leaves) == 3


def test_static_arguments_are_no_leaves_and_reach_the_function():
    call = call_of(lambda x, n: [x] * n, X, 3, options={"static_argnums": 1})
    assert len(call.leaves) == 1 and len(call.function(*call.leaves)) == 3


def test_donated_leaves_are_those_below_the_argument():
    call = call_of(step, {"w": X, "v": X}, X, options={"donate_argnums": 0})
    assert call.donated == (0, 1)
    by_name = call_of(step, batch=X, state={"w": X}, options={"donate_argnames": "state"})
    assert [by_name.paths[k] for k in by_name.donated] == ["state['w']"]


def test_calls_of_equal_types_have_equal_keys():
    assert call_of(step, {"w": X}, X).key == call_of(step, {"w": X + 1}, jnp.ones((4, 8))).key
    assert hash(call_of(step, {"w": X}, X).key) == hash(call_of(step, {"w": X}, X).key)


@pytest.mark.parametrize(
    "other",
    [
        lambda: call_of(step, {"w": X[:2]}, X),
        lambda: call_of(step, {"w": X.astype(np.int32)}, X),
        lambda: call_of(step, {"w": X, "v": X}, X),
        lambda: call_of(step, {"w": X}, batch=X),
        lambda: call_of(step, {"w": X}, X, 2.0, options={"static_argnums": 2}),
    ],
    ids=["shape", "dtype", "structure", "keyword", "static"],
)
def test_calls_of_other_types_have_other_keys(other):
    assert other().key != call_of(step, {"w": X}, X).key


def test_static_values_tell_keys_apart():
    first, second = (
        call_of(step, {"w": X}, X, scale, options={"static_argnums": 2}) for scale in (2.0, 3.0)
    )
    assert first.key != second.key


def test_a_static_value_that_cannot_be_hashed_is_refused():
    with pytest.raises(InvalidArgumentError, match="static argument cannot be hashed"):
        call_of(step, {"w": X}, X, [1], options={"static_argnums": 2})


def test_a_leaf_that_is_no_array_is_refused_by_name():
    with pytest.raises(InvalidArgumentError, match=r"state\['w'\] is str") as caught:
        call_of(step, {"w": "weights"}, X)
    assert "static_argnums" in caught.value.suggestion


class Other:
    def __array__(self):
        return np.zeros(2)


@pytest.mark.parametrize(
    ("leaf", "suggestion"),
    [
        ("gelu", "static_argnums"),
        (["gelu"], "Take it out of the argument"),
        (len, "static_argnums"),
        (np.array(["a"]), "dtype <U1"),
        (Other(), "jax.numpy.asarray"),
        (object(), "register_dataclass"),
    ],
)
def test_a_leaf_that_is_no_array_is_told_how_to_pass_it(leaf, suggestion: str):
    with pytest.raises(InvalidArgumentError, match="not an array") as caught:
        bind(lambda x, leaf: x, JitOptions(), (jnp.ones(2), leaf), {})
    assert suggestion in caught.value.suggestion


@pytest.mark.parametrize("args", [(), ({},), (None,)])
def test_a_function_without_array_argument_is_refused(args):
    with pytest.raises(InvalidFunctionError) as caught:
        call_of(lambda *a: 1.0, *args)
    assert caught.value.suggestion or caught.value.cause


def test_a_prefix_of_shardings_covers_the_leaves_below():
    spec = PartitionSpec("x")
    call = call_of(step, {"w": X, "v": X}, X, options={"in_shardings": (spec, None)})
    assert call.given_shardings == {0: spec, 1: spec}


def test_one_sharding_covers_all():
    spec = PartitionSpec("x")
    call = call_of(step, {"w": X}, X, options={"in_shardings": spec})
    assert call.given_shardings == {0: spec, 1: spec}


@pytest.mark.parametrize("prefix", [(None, None, None), {"w": None}])
def test_shardings_that_are_no_prefix_are_refused(prefix):
    with pytest.raises(ShardingConflictError, match="in_shardings does not fit"):
        call_of(step, {"w": X}, X, options={"in_shardings": prefix})


def test_static_arguments_and_none_take_no_sharding_of_others():
    spec = PartitionSpec("x")
    shardings = {"static_argnums": 0, "in_shardings": (None, None, spec)}
    call = call_of(lambda n, none, x: x.sum(), 2, None, X, options=shardings)
    assert call.given_shardings == {0: spec}
    assert flatten_prefix((None, spec), ({"a": 1, "b": None}, 3), "out_shardings") == [None, spec]


def test_a_prefix_is_spread_over_results():
    spec = PartitionSpec("y")
    assert flatten_prefix((spec, None), ({"a": 1, "b": 2}, 3), "out_shardings") == [
        spec,
        spec,
        None,
    ]


MESH = DeviceMesh.create((2, 4), "cpu")


def test_a_named_sharding_on_the_same_mesh_is_read(make_mesh):
    given = NamedSharding(make_mesh(2, 4), PartitionSpec(None, ("x", "y")))
    assert to_tensor_sharding(given, (4, 8), MESH, "w").dims == ((), (0, 1))


def test_axes_of_size_one_are_left_out():
    mesh = DeviceMesh.create((1, 4), "cpu")
    assert to_tensor_sharding(PartitionSpec("x", "y"), (4, 8), mesh, "w").dims == ((), (1,))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (PartitionSpec("z"), "'z'"),
        (PartitionSpec("x", "x"), "more than once"),
        (PartitionSpec(None, None, "x"), "3 entries"),
        (PartitionSpec(("x", "y")), "8"),
        ("x", "not understood"),
        (jax.sharding.SingleDeviceSharding, "not understood"),
    ],
)
def test_a_sharding_that_contradicts_mesh_or_shape_is_refused(given, message: str):
    with pytest.raises(ShardingConflictError, match=r"state\.w") as caught:
        to_tensor_sharding(given, (4, 8), MESH, "state.w")
    assert message in str(caught.value)


def test_a_named_sharding_on_another_mesh_is_refused(make_mesh):
    given = NamedSharding(make_mesh(4, 2), PartitionSpec("x"))
    with pytest.raises(ShardingConflictError, match=r"'x': 4.*'x': 2"):
        to_tensor_sharding(given, (4, 8), MESH, "w")


@pytest.mark.parametrize("option", ["static_argnames", "donate_argnames"])
def test_a_name_that_is_no_parameter_is_refused_as_in_jax(option: str):
    with pytest.raises(InvalidArgumentError, match=f"{option} names 'weights'; step takes 'state'"):
        options_of(step, **{option: "weights"})
    options_of(lambda state, **others: state, **{option: "weights"})


def test_missing_arguments_are_an_error_that_says_so():
    call = call_of(lambda w, x: w @ x, (X, X.T))
    with pytest.raises(InvalidFunctionError, match=r"L012(.|\n)*missing a required argument: 'x'"):
        jax.make_jaxpr(call.function)(*call.leaves)


def test_a_fault_of_the_function_stays_one():
    call = call_of(lambda w: w @ "text", X)
    with pytest.raises(TypeError, match="str"):
        jax.make_jaxpr(call.function)(*call.leaves)
