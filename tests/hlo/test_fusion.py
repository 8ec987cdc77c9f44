"""Which values are materialised: one test per case of the module's list."""

import jax
import jax.numpy as jnp
import pytest

from kiwi.hlo.chains import MAX_CHAIN, MAX_READS, NO_FUSION
from kiwi.hlo.equation_kinds import is_layout_change, is_map
from kiwi.hlo.fusion import materialised
from tests.helpers.planning import array, fusion_of, graph_of

GPU, TPU = fusion_of("h100-sxm"), fusion_of("v5e")
X, W = array(8, 16), array(16, 16)


def materialised_names(function, *args):
    graph = graph_of(function, *args)
    kept = materialised(graph)
    return [e.name for e in graph.program.equations if kept[e.index]]


def absorbed_names(function, *args):
    graph = graph_of(function, *args)
    kept = materialised(graph)
    return [e.name for e in graph.program.equations if not kept[e.index]]


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("dot_general", lambda x: x @ x.T),
        ("reduce_sum", lambda x: x.sum(0)),
        ("sort", lambda x: jnp.sort(x)),
        ("gather", lambda x: x[jnp.array([1, 2, 0])]),
        ("scatter-add", lambda x: x.at[jnp.array([1, 2])].add(1.0)),
        ("scan", lambda x: jax.lax.scan(lambda c, y: (c + y, c), x[0], x)[1]),
        ("dynamic_update_slice", lambda x: jax.lax.dynamic_update_slice(x, x[:2], (0, 0))),
    ],
)
def test_case_1_more_than_a_map_is_materialised(name, function):
    # The factor behind it keeps case 2 out: its own result is not one of the function. Its reader
    # is a transcendental of another shape, which takes no epilogue.
    def inner(x):
        return jnp.sin(function(x)[None, :, ...].repeat(2, 0))

    assert name in materialised_names(inner, X)


def test_case_2_results_are_materialised():
    assert materialised_names(lambda x: (jnp.negative(x), jnp.negative(x) * 3), X) == ["neg", "mul"]


def test_case_3_operands_of_library_calls_are_materialised():
    assert "mul" in materialised_names(lambda x, w: ((x * 3) @ w).T + 1, X, W)


def test_case_3_layout_changes_in_front_of_library_calls_are_absorbed():
    def function(x, w):
        return (x.T.reshape(8, 16) @ w).sum()

    names = absorbed_names(function, array(16, 2, 4), W)
    assert "transpose" in names and "reshape" in names


def test_case_3_slices_in_front_of_library_calls_are_materialised():
    def function(x, w):
        return (x[:, 4:].T @ w).sum()

    x, w = array(8, 16), array(8, 8)
    assert "transpose" in materialised_names(function, x, w)
    assert "slice" in absorbed_names(function, x, w)


def test_case_3_barriers_in_front_of_library_calls_are_no_copies():
    barrier = jax.lax.optimization_barrier
    given = (lambda x, w: (x @ barrier(w)).sum(), X, W)
    computed = (lambda x, w: (x @ barrier(w * 3)).sum(), X, W)
    assert "optimization_barrier" in absorbed_names(*given)
    assert "optimization_barrier" in materialised_names(*computed)


def test_parts_of_a_split_are_absorbed_one_by_one():
    def function(x):
        left, right = jnp.split(x * 2, 2, axis=1)
        return jnp.sin(left.sum(0)), right.T @ right

    graph = graph_of(function, X)
    assert [e.name for e in graph.program.equations].count("slice") == 2
    assert "split" not in materialised_names(function, X) + absorbed_names(function, X)
    kept = materialised(graph)
    slices = [e.index for e in graph.program.equations if e.name == "slice"]
    assert sorted(kept[s] for s in slices) == [False, True]  # a matmul reads the second


def test_case_4_costly_values_with_several_readers_are_materialised():
    def function(x):
        y = jnp.exp(x * 2)
        return (y * 3).sum(0), (y * 4).sum(1)

    assert "exp" in materialised_names(function, X)


def two_readers(x, w):
    """A tanh with two readers: a reduction, and an elementwise operator whose result a matmul
    reads."""
    y = jnp.tanh(x)
    return y.sum(0), (y * 2) @ w


@pytest.mark.parametrize(
    ("fused", "kept"),
    [
        (NO_FUSION, {"tanh", "mul"}),
        (GPU, {"mul"}),
        (TPU, set()),
    ],
)
def test_costly_maps_are_absorbed_where_the_compiler_repeats_them(fused, kept):
    graph = graph_of(two_readers, X, W)
    found = materialised(graph, fused)
    names = {e.name for e in graph.program.equations if found[e.index]}
    assert names == kept | {"reduce_sum", "dot_general"}


@pytest.mark.parametrize(
    ("fused", "between", "is_kept"),
    [
        (NO_FUSION, 1, True),
        (GPU, 1, False),
        (GPU, 0, True),
    ],
)
def test_on_gpus_each_reader_puts_elements_between_others(fused, between, is_kept):
    """As an associative scan puts its halves together; what overlaps is summed once."""

    def function(x, y):
        behind, before = ((0, 1, between), (0, 0, 0)), ((1, 0, between), (0, 0, 0))
        both = jax.lax.pad(x, 0.0, behind) + jax.lax.pad(y, 0.0, before)
        return (both * 3).sum(0), (both * 4).sum(1)

    graph = graph_of(function, X, X)
    kept = materialised(graph, fused)
    assert is_kept == ("add" in [e.name for e in graph.program.equations if kept[e.index]])


@pytest.mark.parametrize(
    ("fused", "tensors", "kept"),
    [
        (GPU, 1, []),
        (GPU, 2, ["dot_general"]),
        (NO_FUSION, 1, ["dot_general"]),
    ],
)
def test_on_gpus_a_matmul_adds_a_bias_and_one_tensor(fused, tensors, kept):
    def function(x, w, b, *residuals):
        return sum(residuals) + (x @ w + b)

    graph = graph_of(function, X, W, array(W.shape[1]), *[array(X.shape[0], W.shape[1])] * tensors)
    found = materialised(graph, fused)
    names = [e.name for e in graph.program.equations if found[e.index]]
    assert names == [*kept, "add"]


@pytest.mark.parametrize(("readers", "kept"), [(1, 0), (2, 1)])
def test_what_several_matmuls_read_is_the_epilogue_of_another(readers: int, kept: int):
    """XLA:TPU computes it once, behind the matmul in front of it, as a gradient of relu."""

    def function(x, w, mask):
        y = jnp.where(mask > 0, x @ w, 0)
        return [y @ w, y.T @ x][:readers]

    graph = graph_of(function, array(16, 16), array(16, 16), array(16, 16))
    found = materialised(graph, TPU)
    names = [e.name for e in graph.program.equations if found[e.index]]
    assert names.count("select_n") == kept
    assert names.count("dot_general") == readers + 1 - kept


def test_a_repeated_map_is_materialised_where_its_operands_are_larger():
    def function(x, z):
        y = jnp.exp(x * z)
        return (y * 3).sum(0), (y * 4).sum(1)

    graph = graph_of(function, X, X)
    found = materialised(graph, TPU)
    assert "exp" in {e.name for e in graph.program.equations if found[e.index]}


def test_case_4_costly_values_that_one_map_alone_reads_are_absorbed():
    def function(x, g, w):
        slope = jax.nn.sigmoid(x)
        return (g * slope * (1 + x * (1 - slope))) @ w, x.sum()

    assert "logistic" in absorbed_names(function, X, X, W)
    assert "logistic" in materialised_names(lambda x, g, w: (jax.nn.sigmoid(x), g), X, X, W)


def test_case_4_additions_with_several_readers_are_materialised():
    def function(x, z):
        y = x + z
        return (y * 3).sum(0), (y * 4).sum(1)

    assert "add" in materialised_names(function, X, X)


def shifted(read_twice, vector):
    """The sum of a matmul's result and a vector, with two readers. With `read_twice`, another
    operator reads the matmul's result too."""

    def function(x, w, b):
        y = x @ w
        other = y.sum(0) if read_twice else 0
        z = y + b
        return (z * 3).sum(0), (z * 4).sum(1), other

    return materialised_names(function, array(512, 16), W, vector)


def test_case_4_vectors_added_to_what_is_there_anyway_are_absorbed():
    assert "add" not in shifted(True, array(16))
    assert "add" in shifted(True, array(512, 16)), "two tensors"


def test_case_4_vectors_added_to_what_is_there_for_nothing_else_take_its_place():
    names = shifted(False, array(16))
    assert "add" in names and "dot_general" not in names


def test_case_4_cheap_values_with_several_readers_are_absorbed():
    def function(x):
        y = x * 2
        return (y * 3).sum(0), (y * 4).sum(1)

    assert absorbed_names(function, X) == ["mul", "mul", "mul"]


def test_case_4_costly_values_with_one_reader_are_absorbed():
    assert "exp" in absorbed_names(lambda x: (jnp.exp(x) * 2).sum(), X)


def test_case_5_long_chains_are_cut():
    def function(x):
        for k in range(MAX_CHAIN + 4):
            x = x * (k + 1.5)
        return x.sum()

    names = materialised_names(function, X)
    assert names == ["mul", "reduce_sum"]


def test_case_5_chains_of_many_inputs_are_cut():
    def function(*xs):
        total = xs[0]
        for x in xs[1:]:
            total = total * x
        return total.sum()

    few, many = [X] * MAX_READS, [X] * (MAX_READS + 1)
    assert materialised_names(function, *few) == ["reduce_sum"]
    assert materialised_names(function, *many) == ["mul", "reduce_sum"]


def test_values_computed_from_constants_are_absorbed():
    def function(x, w):
        mask = jnp.exp(jnp.arange(16.0))
        return ((x + mask) @ w).sum() + (x * mask).sum()

    assert "exp" in absorbed_names(function, X, W)


def test_a_matmul_is_absorbed_into_its_epilogue():
    assert materialised_names(lambda x, w: x @ w + x, X, W) == ["add"]


def test_a_matmul_with_two_readers_has_no_epilogue():
    def function(x, w):
        h = x @ w
        return jnp.tanh(h), h * 2

    assert "dot_general" in materialised_names(function, X, W)


def test_a_reduction_broadcast_again_has_no_epilogue():
    names = materialised_names(lambda x: x / x.sum(1, keepdims=True), X)
    assert names == ["reduce_sum", "div"]


def test_a_reduction_of_nothing_is_a_layout_change():
    graph = graph_of(lambda x: x.sum(1), array(8, 1))
    assert is_map(graph, 0) and is_layout_change(graph, 0)
    assert not is_map(graph_of(lambda x: x.sum(1), X), 0)
