"""Planned calls: `jax.jit` finds the plan of known arguments, and all other arguments reach their
plan."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kiwi
from kiwi.calls.signature import Arguments
from kiwi.campaign.barrier_levels import with_needed_barriers
from kiwi.errors import InvalidArgumentError
from kiwi.plans.record import PlanRecord
from tests.helpers.loops import layers


def step(state: Any, power: int, batch: Any, *, scale: Any = None, twice: bool = False) -> Any:
    """A step whose state has a None. `power` and `twice` are static."""
    moved = {**state, "w": state["w"] + batch**power * (2 if twice else 1)}
    return moved, None, moved["w"].sum() * (1.0 if scale is None else scale)


def planned(**options: Any) -> kiwi.PlannedFunction:
    static = {"static_argnums": 1, "static_argnames": "twice"}
    return kiwi.jit(step, mesh_shape=(2, 4), verify=None, **static, **options)


def state_of(rows: int = 8) -> Any:
    return {"w": jnp.arange(8.0 * rows).reshape(rows, 8), "nothing": None, "k": jnp.ones(3)}


def assert_same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)


BATCHES = {
    "numpy": np.full((8, 8), 2.0, np.float32),
    "uncommitted": jnp.full((8, 8), 2.0),
    "on another device": jax.device_put(np.full((8, 8), 2.0, np.float32), jax.devices()[3]),
    "other rows": jnp.ones((1, 8)),
    "integers": jnp.full((8, 8), 3),
    "a Python number": 2.0,
}


def test_all_signatures_and_placements_reach_their_plan():
    """Each twice, in turn, so that the plan that ran last is asked for arguments of another."""
    function = planned()
    calls = [
        (power, batch, keywords)
        for batch in BATCHES.values()
        for power, keywords in ((1, {}), (3, {"twice": True}), (1, {"scale": jnp.float32(2)}))
    ]
    for power, batch, keywords in (*calls, *calls[::-1]):
        found = function(state_of(), power, batch, **keywords)
        assert_same(found, step(state_of(), power, batch, **keywords))


def test_a_step_waits_for_collectives_where_xla_generates_no_code_otherwise(monkeypatch):
    """And says so once; what else XLA refuses is the caller's to see."""
    said = ["RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom:\nRan out of memory", "INTERNAL"]
    made = jax.jit

    def refusing(function, *, compiler_options=None, **options):
        jitted = made(function, **options)

        def run(*args):
            if compiler_options == {"waits": False}:
                raise jax.errors.JaxRuntimeError(said[0])
            return jitted(*args)

        return jitted if compiler_options is None else run

    monkeypatch.setattr(
        PlanRecord, "run_options", lambda self, compiler, *, waits=False: {"waits": waits}
    )
    function = kiwi.jit(step, mesh_shape=(2, 4), verify=None, static_argnums=1)
    monkeypatch.setattr(jax, "jit", refusing)
    with pytest.warns(UserWarning, match="No overlap, .*VmemOom:$"):
        found = function(state_of(), 1, BATCHES["numpy"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = function(state_of(), 1, BATCHES["numpy"])
    assert_same(found, step(state_of(), 1, BATCHES["numpy"]))
    assert_same(again, found)
    said.reverse()
    function = kiwi.jit(step, mesh_shape=(2, 4), verify=None, static_argnums=1)
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        function(state_of(), 1, BATCHES["numpy"])
    said.reverse()  # A step that waits anyway is not compiled again.
    monkeypatch.setattr(PlanRecord, "run_options", lambda *_, waits=False: {"waits": False})
    function = kiwi.jit(step, mesh_shape=(2, 4), verify=None, static_argnums=1)
    with warnings.catch_warnings(), pytest.raises(jax.errors.JaxRuntimeError, match="VmemOom"):
        warnings.simplefilter("error")
        function(state_of(), 1, BATCHES["numpy"])


def test_it_runs_the_step_for_the_attached_compiler():
    """A plan made for another compiler is emitted with the barriers that the attached one needs."""
    loop = layers()
    function = kiwi.jit(loop.step, mesh_shape=(2, 4), verify=None, profile="h100-sxm")
    plan = with_needed_barriers(function.plan(*loop.args))
    assert plan is not None
    function._plans = dict.fromkeys(function._plans, plan)
    function(*loop.args)
    ((dispatched,),) = function._dispatched.values()
    mesh, arguments = plan.mesh.jax_mesh(), plan.traced.call.shapes
    programs = (
        dispatched._jitted.lower(*loop.args),
        plan.lower(),
        plan.step.jit(mesh).lower(*arguments),
    )
    found, wanted, others = (p.as_text().count("optimization_barrier") for p in programs)
    assert found == wanted > others


def test_keyword_arguments_may_come_in_any_order():
    function = planned()
    expected = step(state_of(), 2, BATCHES["numpy"], scale=jnp.float32(3), twice=True)
    for _ in range(2):
        for keywords in (
            {"batch": BATCHES["numpy"], "scale": jnp.float32(3), "twice": True},
            {"twice": True, "scale": jnp.float32(3), "batch": BATCHES["numpy"]},
        ):
            assert_same(function(state_of(), 2, **keywords), expected)


def test_a_known_signature_is_not_looked_up_again(monkeypatch):
    function = planned()
    state, *_ = function(state_of(), 1, BATCHES["numpy"])
    state, *_ = function(state, 1, BATCHES["numpy"])
    monkeypatch.setattr(Arguments, "of", None)
    found, *_ = function(state, 1, BATCHES["numpy"])
    np.testing.assert_array_equal(found["w"], state_of()["w"] + 6)
    with pytest.raises(TypeError, match="NoneType"):
        function(state, 2, BATCHES["numpy"])


def test_donated_arguments_are_gone_and_others_are_not():
    function = planned(donate_argnums=0)
    state = state_of()
    for _ in range(3):
        before, (state, *_) = state, function(state, 1, batch=BATCHES["uncommitted"])
    assert before["w"].is_deleted() and not state["w"].is_deleted()
    assert not BATCHES["uncommitted"].is_deleted()


def test_what_is_no_array_is_named():
    function = planned()
    function(state_of(), 1, BATCHES["numpy"])
    with pytest.raises(InvalidArgumentError, match=r"Argument state\['w'\] is str"):
        function({**state_of(), "w": "text"}, 1, BATCHES["numpy"])
    with pytest.raises(InvalidArgumentError, match="hashed"):
        function(state_of(), [1], BATCHES["numpy"])
