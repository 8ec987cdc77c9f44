"""Values in host memory: the offered options, their costs and memory, and the decisions."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kiwi
from kiwi.errors import InvalidArgumentError
from kiwi.hlo.host_memory import FETCH
from tests.helpers.offloading import all_as, arrays, perceptron
from tests.helpers.planning import array

MiB = 2**20
LAYERS, WIDTH, ROWS = 4, 256, 8192
VALUE_BYTES = 4 * WIDTH * ROWS
HOST_BYTES_PER_SECOND = 16e9
"""The host bandwidth of a v5e."""


@functools.cache
def offloaded(*, is_scanned: bool) -> kiwi.Plan:
    step = perceptron(LAYERS, is_scanned=is_scanned)
    return all_as(step, arrays(LAYERS, WIDTH, ROWS), "offload")


@pytest.mark.parametrize("is_scanned", [True, False])
def test_an_offloaded_value_is_held_while_it_is_used_and_copied_twice(is_scanned: bool):
    """Each layer has two values for the backward pass; a scan stacks also what it hands on."""
    plan = offloaded(is_scanned=is_scanned)
    kept = all_as(perceptron(LAYERS, is_scanned=is_scanned), arrays(LAYERS, WIDTH, ROWS), "keep")
    found = [d for d in plan.decisions if d.residency == "offload"]
    count = 3 * LAYERS if is_scanned else len(found)
    host_bytes = count * VALUE_BYTES
    assert plan.estimate.host_peak_bytes == host_bytes >= (2 * LAYERS - 1) * VALUE_BYTES
    seconds = 2 * host_bytes / HOST_BYTES_PER_SECOND
    assert plan.estimate.offload_seconds == pytest.approx(seconds)
    more = plan.estimate.communication_seconds - kept.estimate.communication_seconds
    assert more == pytest.approx(seconds)
    assert plan.estimate.hidden_seconds > 0
    # What else is held at the peak: the values of one layer, and what is computed of them.
    less = kept.estimate.peak_bytes - plan.estimate.peak_bytes
    assert less >= (2 * LAYERS - 4) * VALUE_BYTES


def test_what_hides_is_the_smaller_of_computing_and_copying():
    """Of each window all but the longest channel, and 95 % of a copy at most."""
    plan = offloaded(is_scanned=True)
    assert plan.origin is None
    estimate = plan.estimate
    whole = estimate.step_seconds + estimate.hidden_seconds
    parts = estimate.compute_seconds + estimate.communication_seconds
    assert whole == pytest.approx(parts + estimate.resharding_seconds + estimate.recompute_seconds)
    one_way = estimate.offload_seconds / 2
    assert estimate.step_seconds >= 2 * one_way * 0.95


def test_a_value_that_no_other_equals_takes_two_elements_of_the_host():
    """XLA would know the index of an only element."""

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return w - jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)

    plan = all_as(step, (array(WIDTH, WIDTH), array(ROWS, WIDTH)), "offload")
    found = [d.shape for d in plan.decisions if d.residency == "offload"]
    assert found == [(ROWS, WIDTH)]
    assert plan.estimate.host_peak_bytes == 2 * VALUE_BYTES


def test_copies_hide_behind_computing_whatever_links_cost():
    """On a GPU whose collectives would hide behind 0.7 of what is computed, and on one that has
    them waited for, 95 % of copies hide behind all of it, where they take less."""
    step, given = perceptron(LAYERS, is_scanned=False), arrays(LAYERS, 2048, ROWS)
    for interference in (0.3, None):
        fast = replace(kiwi.mesh.hardware("h100-sxm"), host_bandwidth_bytes_per_second=1e13)
        profile = replace(fast, interference=interference)
        estimate = all_as(step, given, "offload", profile=profile).estimate
        assert estimate.offload_seconds > 0
        assert estimate.hidden_seconds == pytest.approx(0.95 * estimate.offload_seconds)


@pytest.mark.parametrize(
    "profile, is_scanned", [("v5e", True), ("v5e", False), ("h100-sxm", False)]
)
def test_an_offloaded_step_computes_the_same(profile: str, is_scanned: bool):
    layers, width, rows = 3, 8, 16
    step = perceptron(layers, is_scanned=is_scanned)
    options = {"mesh_shape": (2,), "profile": profile}
    plan = all_as(step, arrays(layers, width, rows), "offload", 2**17, **options)
    assert plan.execution.fetched and not plan.execution.recomputed
    keys = jax.random.split(jax.random.key(0))
    given = (
        jax.random.normal(keys[0], (layers, width, width)),
        jax.random.normal(keys[1], (rows, width)),
    )
    jitted = plan.jit(plan.mesh.jax_mesh())
    for found, expected in zip(jitted(*given), step(*given), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_without_a_host_budget_nothing_is_offered():
    step, given = perceptron(2, is_scanned=True), arrays(2, 64, 512)
    plan = kiwi.plan(step, *given, mesh_shape=(1,), profile="v5e", verify=None)
    assert plan.host_limit_bytes is None and plan.origin is not None
    nodes = plan.origin.planning.unit_nodes
    assert not any(r.fetch_at is not None for n in nodes for r in n.residency.options)


def test_the_hosts_memory_is_shared_by_its_devices():
    """A host of v5e has 8 chips."""
    step = perceptron(2, is_scanned=True)
    for mesh_shape, devices in (((2,), 2), ((16,), 8)):
        options = {"mesh_shape": mesh_shape, "profile": "v5e", "verify": None}
        jitted = kiwi.jit(step, host_memory_budget="8MiB", **options)
        assert jitted.settings.host_limit_bytes == 8 * MiB // devices


def test_a_plan_with_a_host_budget_is_never_slower_and_meets_both(tmp_path):
    """Copies that hide behind computation cost less than computing again."""
    step, given = perceptron(LAYERS, is_scanned=True), arrays(6, 8192, 4096, "bfloat16")
    options = {"mesh_shape": (1,), "profile": "v5e", "verify": None, "donate_argnums": 0}
    free = kiwi.plan(step, *given, **options)
    budget = int(0.8 * free.estimate.peak_bytes)
    plain = kiwi.plan(step, *given, memory_budget=budget, **options)
    assert plain.execution.recomputed
    plan = kiwi.plan(step, *given, memory_budget=budget, host_memory_budget="1GiB", **options)
    assert plan.fits and plan.execution.fetched
    assert plan.estimate.step_seconds < plain.estimate.step_seconds
    assert plan.residency_counts()["offload"] == len(plan.execution.fetched)
    first = min(plan.execution.fetched)
    assert "Offloaded" in str(plan) and "offloaded" in str(plan.explain(first))
    plan.save(tmp_path / "plan.json")
    again = kiwi.load_plan(tmp_path / "plan.json").apply(step).plan(*given)
    assert again.execution.fetched == plan.execution.fetched
    assert again.estimate.host_peak_bytes == plan.estimate.host_peak_bytes
    assert kiwi.diff(again, plan).same
    least = plan.estimate.host_peak_bytes
    narrow = kiwi.plan(step, *given, memory_budget=budget, host_memory_budget=least // 2, **options)
    assert narrow.estimate.host_peak_bytes <= least // 2
    assert plan.estimate.step_seconds <= narrow.estimate.step_seconds + 1e-12


def test_xla_cpu_and_other_planners_say_that_they_offload_nothing():
    step, given = perceptron(2, is_scanned=True), arrays(2, 64, 512)
    options = {"mesh_shape": (1,), "profile": "v5e", "host_memory_budget": "1GiB"}
    plan = kiwi.plan(step, *given, verify="cpu", **{**options, "profile": "cpu"})
    assert "Nothing is offloaded to the host's memory in programs for 'cpu'." in [
        note.text for note in plan.notes
    ]
    plan = kiwi.plan(step, *given, planner="alpa", verify=None, **options)
    assert any("offloads nothing" in note.text for note in plan.notes)


def test_hints_ask_for_offloading_and_forbid_it():
    def step(ws, x, *, offload):
        def loss(ws):
            y = x
            for w in ws:
                y = kiwi.hint(jnp.tanh(y @ w), offload=offload, name="hidden")
            return (y**2).sum()

        return jax.grad(loss)(ws)

    given = (array(64, 64),) * 3, array(512, 64)
    options = {"mesh_shape": (1,), "profile": "v5e", "verify": None}

    def offloaded(offload: bool, **more) -> int:
        jitted = kiwi.jit(functools.partial(step, offload=offload), **options, **more)
        plan = jitted.plan(*given)
        assert ("not read" in str(plan.notes)) == (offload and not more)
        return len(plan.execution.fetched)

    assert offloaded(True, host_memory_budget="1GiB") >= 2
    assert offloaded(True) == 0
    tight = {"memory_budget": "700KiB", "host_memory_budget": "1GiB"}
    assert offloaded(False, **tight) == 0
    with pytest.raises(InvalidArgumentError, match="to keep a value and to offload it"):
        kiwi.hint(jnp.ones(3), keep=True, offload=True)


def test_what_lies_on_the_host_is_not_offloaded_there():
    """It is fetched again: a batch that the forward and the backward pass read."""
    on_host = kiwi.Constraints(memory_kinds={"x": "pinned_host"})
    step, (ws, x) = perceptron(LAYERS, is_scanned=False), arrays(LAYERS, WIDTH, ROWS)
    plan = all_as(step, (ws, x), "offload", constraints=on_host)
    units = plan.execution.units
    names = {
        units.graph.program.equations[units.units[u].root].name for u in plan.execution.fetched
    }
    assert names and FETCH not in names
    assert plan.lower(jax.devices())
