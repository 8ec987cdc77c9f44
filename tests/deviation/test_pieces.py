"""Pieces of programs as functions: the whole piece is the program, and parts fit together."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kiwi.deviation.pieces import Piece, sizes_of, whole_piece
from kiwi.deviation.shrinking import shrunk
from kiwi.hlo.tracing import trace


def attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    scores = jnp.einsum("bqhc,bkhc->bhqk", query, key) * 0.25
    mixed = jnp.einsum("bhqk,bkhc->bqhc", jax.nn.softmax(scores), value)
    return jnp.sum(mixed.reshape(*mixed.shape[:2], -1) ** 2)


TYPES = (jax.ShapeDtypeStruct((4, 16, 2, 8), jnp.float32),) * 3


def gradients(*arrays: jax.Array) -> list[jax.Array]:
    value, found = jax.value_and_grad(attention, (0, 1, 2))(*arrays)
    return [value, *found]


@pytest.fixture(scope="module")
def whole() -> Piece:
    return whole_piece(trace(gradients, TYPES))


def test_the_whole_piece_computes_what_the_function_does(whole: Piece):
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=t.shape).astype(np.float32) for t in TYPES]
    program = trace(gradients, TYPES)
    by_value = dict(zip(program.arguments, arrays, strict=True))
    found = whole.function(*(by_value[value] for value in whole.arguments))
    expected = dict(zip(program.results, gradients(*arrays), strict=True))
    assert len(found) == 4
    for value, array in zip(whole.results, found, strict=True):
        np.testing.assert_allclose(array, expected[value], rtol=1e-5, atol=1e-6)


def test_a_part_takes_what_it_does_not_compute(whole: Piece):
    numbers = [k for k, node in enumerate(whole.nodes) if node.name in ("exp", "div")]
    part = whole.part(numbers)
    made = {value for node in part.nodes for value in node.writes}
    assert part.arguments and not made & set(part.arguments)
    types = jax.eval_shape(part.function, *part.argument_types)
    assert [t.shape for t in types] == [part.types[v].shape for v in part.results]
    assert all(value in made for value in part.results)


def test_phases_of_a_part_are_those_of_the_step(whole: Piece):
    again = whole_piece(trace(whole.function, whole.argument_types))
    before = [(node.name, node.scope) for node in whole.nodes]
    assert [(node.name, node.scope) for node in again.nodes] == before
    assert {scope for _, scope in before} == {"jvp()", "transpose(jvp())"}


def test_neighbours_grow_to_the_whole(whole: Piece):
    seed = next(k for k, node in enumerate(whole.nodes) if node.name == "exp")
    found = [whole.neighbours([seed], distance) for distance in range(9)]
    assert seed in found[0]
    assert all(a <= b for a, b in itertools.pairwise(found))
    assert found[-1] == set(range(len(whole.nodes)))


def test_a_dimension_shrinks_everywhere(whole: Piece):
    smaller = shrunk(whole, 16, 4)
    assert smaller is not None and 16 not in sizes_of(smaller) and 4 in sizes_of(smaller)
    assert {t.shape for t in smaller.argument_types} == {(4, 4, 2, 8)}
    types = jax.eval_shape(smaller.function, *smaller.argument_types)
    assert [t.shape for t in types] == [smaller.types[v].shape for v in smaller.results]


def test_what_a_reshape_joins_shrinks_with_it():
    types = (jax.ShapeDtypeStruct((6, 4, 10), jnp.float32),)
    piece = whole_piece(trace(lambda x: [jnp.exp(x).reshape(6, 40) * 2.0], types))
    smaller = shrunk(piece, 40, 4)
    assert smaller is not None
    assert (smaller.argument_types[0].shape, sizes_of(smaller)[0]) in (
        ((6, 1, 10), 10),
        ((6, 4, 10), 10),
    )
    assert shrunk(piece, 10, 3) is None


def test_sizes_inside_of_loops_stay():
    def run(x: jax.Array) -> list[jax.Array]:
        return [jax.lax.scan(lambda c, a: (c + a, None), x[0], x)[0]]

    piece = whole_piece(trace(run, (jax.ShapeDtypeStruct((8, 6), jnp.float32),)))
    assert shrunk(piece, 6, 2) is None
    smaller = shrunk(piece, 8, 2)
    assert smaller is not None and smaller.argument_types[0].shape == (4, 6)
