"""Work of operators against arithmetic by hand and XLA's own count."""

import jax
import jax.numpy as jnp
import pytest

from examples import gpt
from kiwi.hlo.costs import operator_flops
from kiwi.hlo.graph import Phase
from kiwi.hlo.regions.work import region_flops
from kiwi.hlo.rule import elementwise_rule
from tests.helpers.planning import array, graph_of, step_graph


def flops_of(function, *args):
    """Returns the FLOPs of the costliest operator."""
    return max(op.flops for op in graph_of(function, *args).operators)


def xla_flops(function, *args):
    return jax.jit(function).lower(*args).compile().cost_analysis()["flops"]


@pytest.mark.parametrize(
    ("subscripts", "shapes", "expected"),
    [
        ("ik,kj->ij", [(4, 6), (6, 8)], 2 * 4 * 6 * 8),
        ("bik,bkj->bij", [(3, 4, 6), (3, 6, 8)], 2 * 3 * 4 * 6 * 8),
        ("bsd,dhk->bshk", [(2, 5, 6), (6, 3, 4)], 2 * 2 * 5 * 6 * 3 * 4),
        ("k,k->", [(7,), (7,)], 2 * 7),
    ],
)
def test_a_matmul_counts_two_per_multiply_add(subscripts, shapes, expected):
    def einsum(x, y):
        return jnp.einsum(subscripts, x, y)

    args = [array(*s) for s in shapes]
    assert flops_of(einsum, *args) == expected


def conv(x, k, **options):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, k, (1, 1), "VALID", dimension_numbers=numbers, **options)


def test_a_convolution_counts_window_times_channels():
    # Output 2 x 6 x 6 x 5; each element sums 3 x 3 x 4 products.
    x, k = array(2, 8, 8, 4), array(3, 3, 4, 5)
    assert flops_of(conv, x, k) == 2 * (2 * 6 * 6 * 5) * (3 * 3 * 4)
    assert flops_of(conv, x, k) == pytest.approx(xla_flops(conv, x, k), rel=0.05)


def test_a_grouped_convolution_counts_its_own_channels_only():
    x, k = array(2, 8, 8, 4), array(3, 3, 2, 6)

    def grouped(x, k):
        return conv(x, k, feature_group_count=2)

    assert flops_of(grouped, x, k) == 2 * (2 * 6 * 6 * 6) * (3 * 3 * 2)


def test_a_depthwise_convolution_counts_one_channel_each():
    x, k = array(2, 8, 8, 4), array(3, 3, 1, 4)

    def depthwise(x, k):
        return conv(x, k, feature_group_count=4)

    assert flops_of(depthwise, x, k) == 2 * (2 * 6 * 6 * 4) * (3 * 3)


def test_the_gradient_to_a_kernel_costs_what_the_convolution_does():
    x, k = array(2, 8, 8, 4), array(3, 3, 4, 5)

    def gradient(x, k):
        return jax.grad(lambda k: conv(x, k).sum())(k)

    graph = graph_of(gradient, x, k)
    (backward,) = [op.flops for op in graph.operators if op.opcode == "convolution"]
    assert backward == flops_of(conv, x, k)


def test_moving_data_costs_no_work():
    graph = graph_of(lambda x: jnp.transpose(x).reshape(4, 8)[::-1], array(8, 4))
    assert {op.flops for op in graph.operators} == {0.0}


def test_maps_and_reductions_count_one_per_element():
    rule = elementwise_rule((4, 8), 1)
    assert operator_flops("exponential", rule, [(4, 8)], [(4, 8)]) == 32
    assert operator_flops("reduce", rule, [(4, 8), ()], [(4,)]) == 32


def scan_of_matmuls(x, ws):
    return jax.lax.scan(lambda c, w: (c @ w, None), x, ws)[0]


def test_a_scan_counts_its_body_as_often_as_it_runs():
    (eqn,) = jax.make_jaxpr(scan_of_matmuls)(array(4, 8), array(5, 8, 8)).eqns
    assert region_flops(eqn) == 5 * 2 * 4 * 8 * 8


def test_a_branch_counts_its_costliest_side():
    def function(p, x):
        return jax.lax.cond(p, lambda y: y @ y, lambda y: y + 1, x)

    eqns = jax.make_jaxpr(function)(True, array(8, 8)).eqns
    (cond,) = [e for e in eqns if e.primitive.name == "cond"]
    assert region_flops(cond) == 2 * 8 * 8 * 8


def test_regions_are_counted_in_the_graph():
    graph = graph_of(scan_of_matmuls, array(4, 8), array(5, 8, 8))
    assert sum(info.flops for info in graph.equations if info.is_region) == 5 * 2 * 4 * 8 * 8


def test_matmuls_of_a_training_step_agree_with_xla():
    config = gpt.GptConfig(layers=1, width=64, heads=4, batch=2, sequence=32)
    graph = step_graph(gpt, config)
    counted = sum(op.flops for op in graph.operators if op.opcode == "dot_general")
    args = gpt.abstract_state(config), gpt.abstract_batch(config)
    everything = xla_flops(gpt.make_train_step(config), *args)
    # XLA counts maps as well, which at this width are about a quarter.
    assert 0.6 * everything < counted < everything
    forward = sum(
        op.flops
        for op in graph.operators
        if op.opcode == "dot_general" and graph.phase_of(op.equation) is Phase.FORWARD
    )
    assert counted == pytest.approx(3 * forward, rel=0.2)
