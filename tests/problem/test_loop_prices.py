"""A scanned stack of layers costs as much as its unrolled layers, whatever their number, except for
the copies into stacks on GPUs."""

from dataclasses import replace
from itertools import pairwise
from math import prod
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kiwi
from kiwi.hlo.large_operators import large_ones, reduces_late
from kiwi.memory.residency import Residency
from kiwi.mesh import TensorSharding, hardware
from kiwi.problem.overlap import Overlap
from kiwi.targets.registry import TARGETS
from kiwi.targets.rules.gpu.gpu_copied_stacks import passes_of_stacks
from tests.helpers.planning import WAITING, kernels_of, units_of

WIDTH, HIDDEN, LENGTH, HEADS = 4096, 11008, 2048, 32
BATCH = 8
"""The batch on each device."""


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide * wide, -1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean + 1e-6)).astype(x.dtype) * scale


def _layer(x: jax.Array, w: Any) -> jax.Array:
    y = _norm(x, w["first"])
    q, k, v = ((y @ w[n]).reshape(*x.shape[:2], HEADS, -1) for n in ("query", "key", "value"))
    scores = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k).astype(jnp.float32))
    x += jnp.einsum("bhts,bshd->bthd", scores.astype(x.dtype), v).reshape(x.shape) @ w["out"]
    y = _norm(x, w["second"])
    return x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]


def _step(state: Any, x: jax.Array) -> Any:
    """One step with a float32 momentum. A list of layers is unrolled, a stack is scanned."""

    def loss(params: Any) -> jax.Array:
        if isinstance(params, list):
            found = x
            for w in params:
                found = _layer(found, w)
        else:
            found, _ = jax.lax.scan(lambda x, w: (_layer(x, w), None), x, params)
        return jnp.mean(found.astype(jnp.float32) ** 2)

    params, momentum = state
    value, gradient = jax.value_and_grad(loss)(params)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g.astype(m.dtype), momentum, gradient)
    params = jax.tree.map(lambda p, m: (p - 1e-4 * m).astype(p.dtype), params, momentum)
    return (params, momentum), value


def _estimate(
    length: int,
    *,
    unrolled: bool = False,
    mesh: tuple[int, ...] = (2, 4),
    profile: Any = WAITING,
) -> Any:
    square, wide = (WIDTH, WIDTH), (WIDTH, HIDDEN)
    shapes: dict[str, Any] = dict.fromkeys(("query", "key", "value", "out"), square)
    shapes |= {"gate": wide, "up": wide, "down": wide[::-1], "first": (WIDTH,), "second": (WIDTH,)}

    def params(dtype: str) -> Any:
        if unrolled:
            return [
                {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in shapes.items()}
                for _ in range(length)
            ]
        return {name: jax.ShapeDtypeStruct((length, *s), dtype) for name, s in shapes.items()}

    state = params("bfloat16"), params("float32")
    x = jax.ShapeDtypeStruct((BATCH * prod(mesh), LENGTH, WIDTH), "bfloat16")
    options = {"profile": profile, "verify": None, "donate_argnums": 0, "memory_budget": "10TB"}
    return kiwi.plan(_step, state, x, mesh_shape=mesh, **options).estimate


def _assert_alike(length: int, mesh: tuple[int, ...]) -> None:
    scanned = _estimate(length, mesh=mesh)
    unrolled = _estimate(length, unrolled=True, mesh=mesh)
    assert scanned.step_seconds == pytest.approx(unrolled.step_seconds, rel=0.02)
    moved = [e.communication_seconds + e.resharding_seconds for e in (scanned, unrolled)]
    # What updates a stack gathers it at once; layer by layer each gathering starts anew, but for
    # those of a forward or backward pass that are combined.
    assert 0.98 * moved[0] <= moved[1] < 1.2 * moved[0]


@pytest.fixture
def written_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the forward loop write the arrays for the backward loop in place, as on TPUs."""
    monkeypatch.setitem(TARGETS, "cuda", TARGETS["cuda"].without("gpu_copied_stacks"))


@pytest.mark.usefixtures("written_in_place")
@pytest.mark.parametrize(("length", "mesh"), [(2, (2, 4)), (3, (8,))])
def test_a_scanned_stack_costs_what_its_layers_do_one_by_one(length, mesh):
    _assert_alike(length, mesh)


def _scanned(ws: jax.Array, vs: jax.Array, x: jax.Array) -> jax.Array:
    found, _ = jax.lax.scan(lambda x, w: (x + jnp.sin(x @ w[0]) @ w[1], None), x, (ws, vs))
    return jnp.sum(found**2)


def test_on_gpus_what_a_loop_hands_to_another_one_is_copied_into_a_stack(monkeypatch):
    """Of 4 layers with a state `x`: `x @ w` is read by a cosine (three passes through memory),
    `x` and `sin(x @ w)` by matmuls (five). The elements of the weights lie there. A kernel of each
    iteration writes the stack of the state."""
    arrays = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((4, 512, 512), (512, 512))]
    arguments = arrays[0], arrays[0], arrays[1]
    function = jax.value_and_grad(_scanned, argnums=(0, 1))
    units = kiwi.jit(function, mesh_shape=(1,), verify=None).traced(*arguments).units
    passes = {u.index: passes_of_stacks(units, u) for u in units.units}
    assert sorted(filter(None, passes.values())) == [3, 5, 5]
    options = {"mesh_shape": (1,), "profile": "h100-sxm", "verify": None, "memory_budget": "10TB"}
    found = []
    for target in (TARGETS["cuda"], TARGETS["cuda"].without("gpu_copied_stacks")):
        monkeypatch.setitem(TARGETS, "cuda", target)
        plan = kiwi.plan(function, *arguments, planner="xla", **options)
        found.append(plan.estimate.step_seconds)
    copied_bytes = (3 + 5 + 5) * 4 * 4 * 512**2
    h100 = hardware("h100-sxm")
    seconds = copied_bytes / h100.sustained_memory_bytes_per_second + 4 * h100.kernel_launch_seconds
    assert found[0] - found[1] == pytest.approx(seconds, rel=1e-3)


@pytest.mark.usefixtures("written_in_place")
def test_gathering_hides_in_a_loop_as_it_does_layer_by_layer():
    """In the bodies of both loops; layer by layer a parameter may stay gathered in between."""
    found = [_estimate(2, unrolled=unrolled, profile="h100-sxm") for unrolled in (False, True)]
    assert found[0].step_seconds == pytest.approx(found[1].step_seconds, rel=0.02)
    assert all(e.hidden_seconds > 0.5 * e.resharding_seconds for e in found)


@pytest.mark.slow
@pytest.mark.usefixtures("written_in_place")
@pytest.mark.parametrize("length", [12, 16, 32])
@pytest.mark.parametrize("mesh", [(2, 4), (16, 4)])
def test_long_scanned_stacks_cost_what_their_layers_do_one_by_one(length, mesh):
    _assert_alike(length, mesh)


@pytest.mark.parametrize("mesh", [(32, 8)])
def test_each_layer_of_a_scanned_stack_costs_the_same_however_many_there_are(mesh):
    """Lengths that the mesh divides and others; what is gathered in front of a loop starts once."""
    lengths = (8, 40, 126)
    found = [_estimate(length, mesh=mesh) for length in lengths]
    moved = [e.communication_seconds + e.resharding_seconds for e in found]
    for seconds, rel in (([e.step_seconds for e in found], 0.03), (moved, 0.15)):
        pairs = pairwise(zip(lengths, seconds, strict=True))
        each = [(more - less) / (longer - shorter) for (shorter, less), (longer, more) in pairs]
        assert each == pytest.approx([each[0]] * len(each), rel=rel)


def test_reductions_behind_computation_are_told_from_gathers():
    """Fully sharded parameters are gathered early and their gradients summed late."""
    shapes = [jax.ShapeDtypeStruct((4096, 4096), "float32")] * 4

    def step(params: Any, x: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            found = x
            for w in params:
                found = jnp.tanh(found @ w)
            return jnp.mean(found**2)

        return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params))

    x = jax.ShapeDtypeStruct((32768, 4096), "float32")
    options = {"mesh_shape": (8,), "profile": "v5e", "verify": None, "donate_argnums": 0}
    plan = kiwi.plan(step, shapes, x, **options)
    found = plan.estimate
    in_time = found.hiding(found.hidden_sums_seconds / 2, found.hidden_copies_seconds)
    assert in_time.hidden_sums_seconds == found.hidden_sums_seconds / 2
    assert in_time.step_seconds - found.step_seconds == pytest.approx(in_time.hidden_sums_seconds)
    waits = found.hiding(0.0, found.hidden_copies_seconds)
    assert 0 < found.hidden_sums_seconds <= found.hidden_seconds
    assert waits.step_seconds == pytest.approx(found.step_seconds + found.hidden_sums_seconds)
    assert waits.hidden_sums_seconds == 0 and waits.hidden_seconds >= 0
    assert waits.step_seconds <= found.without_overlap.step_seconds
    overlap = Overlap.on(plan.execution.kernels, copies=False)
    once, again = np.ones(1), np.zeros(1)
    matmuls = list(large_ones(plan.execution.units))
    hidden = [bool(overlap.gathered(u, u.reads[-1], once, again)) for u in matmuls[:4]]
    assert hidden == [False, True, True, True]  # Nothing is computed beside the first gather.
    gradients = [unit for unit in matmuls if reduces_late(overlap.units, unit)]
    assert [round(_hidden(overlap, unit), 3) for unit in gradients] == [0.7, 0.7, 0.7, 0.0]
    # Nor beside the last sum, and beside the others one kernel each on a TPU.
    beside_one = replace(overlap, kernel_seconds=dict.fromkeys((u.index for u in matmuls), 0.25))
    assert [_hidden(beside_one, unit) for unit in gradients] == pytest.approx([0.175] * 3 + [0.0])
    combined = replace(overlap, combined_bytes=2**23)
    assert not any(_hidden(combined, unit) for unit in gradients)


def _hidden(overlap: Overlap, unit: Any) -> float:
    """Returns the hidden part of one second of a unit's reduction."""
    strategy: Any = SimpleNamespace(collectives=[SimpleNamespace(seconds=1.0, bytes=2**22)])
    loads = overlap.reduced(unit, [strategy], [Residency(None, 0)])
    return sum(float(load.amounts.sum()) for load in loads)


def test_tpus_wait_for_gathers_of_a_batch_and_for_all_to_alls():
    def product(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.einsum("bij,bjk->bik", jnp.tanh(x @ x), y)

    arrays = [jax.ShapeDtypeStruct((8, 64, 64), "float32")] * 2
    units = units_of(product, *arrays)
    *_, unit = units.units
    for profile, overlapping in (("v5e", [False, True, False]), ("h100-sxm", [True] * 3)):
        overlap = Overlap.on(kernels_of(units, profile), copies=False)
        moves = overlap.overlapping_moves(unit, unit.reads[-1])
        dims = ((0,), (), ()), ((), (0,), ()), ((), (), ())
        of_batch, of_rows, whole = map(TensorSharding, dims)
        pairs = (of_batch, whole), (of_rows, whole), (of_batch, of_rows)
        assert [moves is None or moves.has(*pair) for pair in pairs] == overlapping


def test_what_is_stacked_is_read_once_and_written_twice():
    """XLA fills the stack with zeros before the loop begins."""
    length, rows = 8, 1 << 20

    def step(x: jax.Array) -> Any:
        return jax.lax.scan(lambda x, _: (jnp.cos(x), jnp.sin(x)), x, length=length)[1]

    x = jax.ShapeDtypeStruct((rows,), "float32")
    plan = kiwi.plan(step, x, mesh_shape=(1,), verify=None)
    (stack,) = [d for d in plan.decisions if d.shape == (length, rows)]
    device = kiwi.mesh.hardware("h100-sxm")
    moved_seconds = 3 * 4 * rows / device.sustained_memory_bytes_per_second
    assert stack.seconds == pytest.approx(length * (device.kernel_launch_seconds + moved_seconds))
