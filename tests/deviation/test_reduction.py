"""The search for the smallest deviating piece, with a cheap measure."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from kiwi.deviation.kernels import MEMORY, KernelDeviation
from kiwi.deviation.measured import MEMORY as PEAK
from kiwi.deviation.measured import Measured
from kiwi.deviation.pieces import Piece, whole_piece
from kiwi.deviation.reduction import Reduction, smaller_meshes, suspects_of
from kiwi.hlo.tracing import trace

MIB = float(2**20)


def layer(x: jax.Array, kernel: jax.Array) -> jax.Array:
    inner = jax.nn.relu(x @ kernel)
    return x + jnp.tanh(jnp.sin(inner) * 3.0)


def step(x: jax.Array, kernels: jax.Array) -> list[jax.Array]:
    def loss(kernels: jax.Array) -> jax.Array:
        found = x
        for kernel in kernels:
            found = layer(found, kernel)
        return jnp.sum(found**2)

    return [kernels - 0.1 * jax.grad(loss)(kernels)]


TYPES = (
    jax.ShapeDtypeStruct((1024, 64), jnp.float32),
    jax.ShapeDtypeStruct((3, 64, 64), jnp.float32),
)


@pytest.fixture(scope="module")
def whole() -> Piece:
    return whole_piece(trace(step, TYPES))


def sin_read_by_mul(function: Callable[..., Any], arguments: Sequence[Any]) -> Measured | None:
    """Measures a piece as if a compiler held a `sin` that a `mul` reads twice, and nothing else."""
    piece = whole_piece(trace(function, arguments))
    made = {value: node for node in piece.nodes for value in node.writes}
    found = any(
        node.name == "mul" and any(v in made and made[v].name == "sin" for v in node.reads)
        for node in piece.nodes
    )
    size = float(sum(t.size * t.dtype.itemsize for t in piece.argument_types))
    peak = (64 * size, 128 * size) if found else (64 * size, 64 * size)
    return Measured(peak, (1.0, 1.0), (0.0, 0.0))


def suspect(whole: Piece, name: str) -> KernelDeviation:
    node = next(node for node in whole.nodes if node.name == name)
    shape = whole.types[node.writes[0]].shape
    return KernelDeviation(MEMORY, 1 * MIB, 4 * MIB, name, node.source_line, shape, (7,))


def test_what_is_left_is_what_deviates(whole: Piece):
    lines: list[str] = []
    reduction = Reduction(PEAK, -0.69, {(1,): sin_read_by_mul}, report=lines.append)
    found = reduction.run(whole, [suspect(whole, "sin")])
    assert found is not None
    assert sorted(node.name for node in found.piece.nodes) == ["mul", "sin"]
    assert found.measured.error(PEAK) == pytest.approx(-0.693, abs=0.01)
    assert found.tests == reduction.tests <= len(lines) + 1 and "kept" in " ".join(lines)


def test_dimensions_shrink_until_the_difference_is_too_small_to_count(whole: Piece):
    found = Reduction(PEAK, -0.69, {(1,): sin_read_by_mul}).run(whole, [suspect(whole, "sin")])
    assert found is not None
    (argument,) = found.piece.argument_types
    estimated, compiled = found.measured.peak_bytes
    assert argument.size < 1024 * 64 and abs(compiled - estimated) >= MIB


def test_nothing_is_found_where_nothing_deviates(whole: Piece):
    def agrees(function: Callable[..., Any], arguments: Sequence[Any]) -> Measured | None:
        return Measured((MIB, MIB), (1.0, 1.0), (0.0, 0.0))

    assert Reduction(PEAK, -0.69, {(1,): agrees}).run(whole, [suspect(whole, "sin")]) is None


def test_the_search_ends_after_its_tests(whole: Piece):
    reduction = Reduction(PEAK, -0.69, {(1,): sin_read_by_mul}, most_tests=3)
    found = reduction.run(whole, [suspect(whole, "sin")])
    assert found is not None and reduction.tests == 3


def test_a_deviation_in_the_other_direction_is_another_one(whole: Piece):
    assert (
        Reduction(PEAK, 0.69, {(1,): sin_read_by_mul}).run(whole, [suspect(whole, "sin")]) is None
    )


def test_larger_meshes_are_tried_where_one_device_shows_nothing(whole: Piece):
    def fails(function: Callable[..., Any], arguments: Sequence[Any]) -> Measured | None:
        return None

    reduction = Reduction(PEAK, -0.69, {(1,): fails, (2,): sin_read_by_mul})
    found = reduction.run(whole, [suspect(whole, "sin")])
    assert found is not None and found.mesh_shape == (2,)


def test_suspects_deviate_as_the_step_does(whole: Piece):
    low, high = suspect(whole, "sin"), suspect(whole, "tanh")
    high = KernelDeviation(MEMORY, 9 * MIB, 1 * MIB, "tanh", high.source_line, high.shape, (3,))
    names = [
        {whole.nodes[number].name for number in seeds}
        for seeds in suspects_of(whole, [low, high], -0.5)
    ]
    assert "sin" in names[0]
    assert suspects_of(whole, [high], -0.5) == []


def test_meshes_to_try():
    assert smaller_meshes((2, 4)) == [(1,), (2,), (8,), (2, 4)]
    assert smaller_meshes((8,)) == [(1,), (2,), (8,)]
    assert smaller_meshes((1,)) == [(1,)]


def test_small_differences_are_none():
    assert Measured((100.0, 50.0), (1e-6, 2e-6), (9.0, 0.0)).error(PEAK) == 0.0
    found = Measured((8 * MIB, 4 * MIB), (1e-3, 1e-3), (64 * MIB, 0.0))
    assert found.error(PEAK) == pytest.approx(0.693, abs=1e-3)
    assert found.largest == "collectives" and found.error("time") == 0.0
