"""Rules joined along the values between operators."""

import itertools
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from kiwi.hlo.rule import (
    ComposedRule,
    RuleComposer,
    ShardingRule,
    elementwise_rule,
    independent_rule,
)

MATMUL = ShardingRule((4, 6, 8), (((0,), (1,)), ((1,), (2,))), (((0,), (2,)),), frozenset({1}))
"""[i, k] @ [k, j] with i=4, k=6, j=8."""


def compose(steps, results) -> ComposedRule:
    composer = RuleComposer()
    for rule, operands, outputs in steps:
        composer.add(rule, operands, outputs)
    return composer.compose(results)


def reshape_rule(source, target, factors, source_dims, target_dims) -> ShardingRule:
    rule = ShardingRule(factors, (source_dims,), (target_dims,))
    sizes = [np.prod([factors[f] for f in fs], dtype=int) for fs in (*source_dims, *target_dims)]
    assert sizes == [*source, *target]
    return rule


def test_matmul_and_bias_share_the_columns():
    bias = ShardingRule((4, 8), (((0,), (1,)), ((1,),)), (((0,), (1,)),))
    rule = compose([(MATMUL, ["x", "w"], ["h"]), (bias, ["h", "b"], ["y"])], ["y"])
    reads = dict(rule.reads)
    ((rows,), (columns,)) = rule.results[0]
    ((x_rows,), (summed,)) = reads["x"]
    assert x_rows == rows and reads["w"] == ((summed,), (columns,)) and reads["b"] == ((columns,),)
    assert [rule.factor_sizes[f] for f in (rows, summed, columns)] == [4, 6, 8]
    assert rule.reduction == {summed} and rule.blocked == frozenset()
    assert rule.operator_factors == (frozenset({rows, summed, columns}), frozenset({rows, columns}))
    assert set(rule.shardable) == {rows, summed, columns}


def test_a_reshape_splits_the_factor_before_it():
    split = reshape_rule((4, 8), (4, 2, 4), (4, 2, 4), ((0,), (1, 2)), ((0,), (1,), (2,)))
    rule = compose([(MATMUL, ["x", "w"], ["h"]), (split, ["h"], ["y"])], ["y"])
    major, minor = (factors[0] for factors in rule.results[0][1:])
    assert dict(rule.reads)["w"][1] == (major, minor)
    assert (rule.factor_sizes[major], rule.factor_sizes[minor]) == (2, 4)


def test_a_reshape_merges_the_factors_before_it():
    merge = reshape_rule((4, 8), (32,), (4, 8), ((0,), (1,)), ((0, 1),))
    rule = compose([(MATMUL, ["x", "w"], ["h"]), (merge, ["h"], ["y"])], ["y"])
    rows, columns = rule.results[0][0]
    assert dict(rule.reads)["x"][0] == (rows,) and dict(rule.reads)["w"][1] == (columns,)


def test_splits_of_one_dimension_in_two_ways_are_refined():
    halves = reshape_rule((8,), (2, 4), (2, 4), ((0, 1),), ((0,), (1,)))
    quarters = reshape_rule((8,), (4, 2), (4, 2), ((0, 1),), ((0,), (1,)))
    source = elementwise_rule((8,), 1)
    rule = compose(
        [(source, ["x"], ["h"]), (halves, ["h"], ["a"]), (quarters, ["h"], ["b"])], ["a", "b"]
    )
    assert [rule.factor_sizes[f] for f in rule.reads[0][1][0]] == [2, 2, 2]
    assert len(rule.results[0][1]) == 2 and len(rule.results[1][0]) == 2
    assert not rule.blocked


def test_splits_that_do_not_divide_are_blocked():
    by_two = reshape_rule((6,), (2, 3), (2, 3), ((0, 1),), ((0,), (1,)))
    by_three = reshape_rule((6,), (3, 2), (3, 2), ((0, 1),), ((0,), (1,)))
    source = elementwise_rule((6,), 1)
    rule = compose(
        [(source, ["x"], ["h"]), (by_two, ["h"], ["a"]), (by_three, ["h"], ["b"])], ["a", "b"]
    )
    assert rule.shardable == ()


def test_a_factor_twice_in_one_tensor_is_blocked():
    """x @ x.T: sharding the rows of x would shard both dimensions of the result."""
    square = ShardingRule((4, 6, 4), (((0,), (1,)), ((1,), (2,))), (((0,), (2,)),), frozenset({1}))
    transpose = ShardingRule((4, 6), (((0,), (1,)),), (((1,), (0,)),))
    copy = elementwise_rule((4, 6), 1)
    rule = compose(
        [(copy, ["x"], ["c"]), (transpose, ["c"], ["t"]), (square, ["c", "t"], ["y"])], ["y"]
    )
    ((rows,), (columns,)) = rule.results[0]
    assert rows == columns and rule.blocked == {rows}
    assert set(rule.shardable) == rule.reduction


def test_an_outer_operand_read_in_two_ways_is_two_reads():
    square = ShardingRule((4, 6, 4), (((0,), (1,)), ((1,), (2,))), (((0,), (2,)),), frozenset({1}))
    transpose = ShardingRule((4, 6), (((0,), (1,)),), (((1,), (0,)),))
    rule = compose([(transpose, ["x"], ["t"]), (square, ["x", "t"], ["y"])], ["y"])
    assert [key for key, _ in rule.reads] == ["x", "x"]
    assert rule.blocked == frozenset() and len(rule.shardable) == 3


def test_an_operand_read_twice_alike_is_one_read():
    rule = compose([(elementwise_rule((4,), 2), ["x", "x"], ["a"])], ["a"])
    assert [key for key, _ in rule.reads] == ["x"]


def test_blocked_factors_stay_blocked_behind_maps():
    blocked = ShardingRule((4,), (((0,),),), (((0,),),), blocked=frozenset({0}))
    rule = compose([(elementwise_rule((4,), 1), ["x"], ["a"]), (blocked, ["a"], ["b"])], ["b"])
    assert rule.shardable == ()


def test_dimensions_of_size_one_have_no_factor():
    rule = compose([(elementwise_rule((1, 4), 1), ["x"], ["y"])], ["y"])
    assert rule.results[0][0] == () and len(rule.factor_sizes) == 1


def test_keys_of_none_are_ignored():
    rule = compose([(elementwise_rule((4,), 2), ["x", None], ["y"])], ["y"])
    assert [key for key, _ in rule.reads] == ["x"]


def test_as_rule_lists_the_reads_in_order():
    rule = compose([(MATMUL, ["x", "w"], ["y"])], ["y"])
    plain = rule.as_rule()
    assert plain.operands == tuple(dims for _, dims in rule.reads)
    assert plain.reduction == rule.reduction and math.prod(plain.factor_sizes) == 4 * 6 * 8


@pytest.mark.parametrize("blocked", [True, False])
def test_independent_factors_are_all_different(blocked: bool):
    rule = independent_rule([(2, 3)], [(2, 3)], blocked=blocked)
    assert len({f for d in (*rule.operands, *rule.results) for fs in d for f in fs}) == 4
    assert len(rule.blocked) == (4 if blocked else 0)


# Random chains of maps, transposes and reshapes: whatever factor is sharded, computing on the
# shards of the operands gives the shard of the result.


def prime_reshape(draw, shape):
    """Draws a reshape of `shape` and its rule. Both sides group the same prime factors."""
    primes = [p for size in shape for p in prime_factors(size)]
    cuts = draw(st.lists(st.integers(0, len(primes)), max_size=2))
    bounds = [0, *sorted(cuts), len(primes)]
    target = [list(range(a, b)) for a, b in itertools.pairwise(bounds)]
    source, k = [], 0
    for size in shape:
        count = len(prime_factors(size))
        source.append(tuple(range(k, k + count)))
        k += count
    new_shape = tuple(int(np.prod([primes[i] for i in group], dtype=int)) for group in target)
    rule = ShardingRule(tuple(primes), (tuple(source),), (tuple(map(tuple, target)),))
    return new_shape, rule, lambda a, local: a.reshape(local)


def prime_factors(size):
    found, prime = [], 2
    while size > 1:
        while size % prime == 0:
            found.append(prime)
            size //= prime
        prime += 1
    return found


@st.composite
def chains(draw):
    """Draws (shape of x, steps). A step is (rule, whether it reads x again, numpy function)."""
    shape = tuple(draw(st.lists(st.sampled_from([2, 3, 4, 6]), min_size=1, max_size=3)))
    start, steps = shape, []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["map", "transpose", "reshape", "again"]))
        if kind == "again" and shape == start:
            steps.append((elementwise_rule(shape, 2), True, lambda a, x, local: a * 3 + x))
        elif kind == "transpose":
            order = tuple(draw(st.permutations(range(len(shape)))))
            dims = tuple((i,) for i in range(len(shape)))
            rule = ShardingRule(shape, (dims,), (tuple(dims[i] for i in order),))
            shape = tuple(shape[i] for i in order)
            steps.append((rule, False, lambda a, x, local, order=order: a.transpose(order)))
        elif kind == "reshape":
            shape, rule, apply = prime_reshape(draw, shape)
            steps.append((rule, False, lambda a, x, local, apply=apply: apply(a, local)))
        else:
            steps.append((elementwise_rule(shape, 1), False, lambda a, x, local: a + 7))
    return start, steps


def shard(array, dims, sizes, factor, index, count):
    """Returns the `index`-th of `count` blocks of `array` along the factor, wherever the factor
    occurs."""
    split = array.reshape([sizes[f] for factors in dims for f in factors])
    flat_factors = [f for factors in dims for f in factors]
    for axis, f in enumerate(flat_factors):
        if f == factor:
            split = np.split(split, count, axis)[index]
    local = [
        int(np.prod([sizes[f] // (count if f == factor else 1) for f in factors], dtype=int))
        for factors in dims
    ]
    return split.reshape(local)


@hypothesis.given(chains())
@hypothesis.settings(max_examples=150)
def test_shards_of_operands_give_the_shard_of_the_result(chain):
    shape, steps = chain
    composer = RuleComposer()
    for k, (rule, reads_x, _) in enumerate(steps):
        operand = "x" if k == 0 else k - 1
        composer.add(rule, [operand, "x"] if reads_x else [operand], [k])
    keys = list(range(len(steps)))
    whole_rule = composer.compose(keys)
    x = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    whole = evaluate(steps, x, [x] * len(steps), None)
    for factor in whole_rule.shardable:
        for count in {2, 3, whole_rule.factor_sizes[factor]}:
            if whole_rule.factor_sizes[factor] % count == 0:
                check_shards(whole_rule, steps, x, whole, factor, count)


def check_shards(rule, steps, x, whole, factor, count):
    sizes = rule.factor_sizes
    reads = iter(rule.reads)
    first = next(reads)[1]
    for index in range(count):
        local_first = shard(x, first, sizes, factor, index, count)
        wanted = [
            shard(w, dims, sizes, factor, index, count)
            for w, dims in zip(whole, rule.results, strict=True)
        ]
        # Equal reads of x are merged: a later one either has dims of its own or those of another.
        dims_of_x = [dims for _, dims in rule.reads]
        for again in itertools.product(dims_of_x, repeat=sum(s[1] for s in steps[1:])):
            extra = iter(shard(x, dims, sizes, factor, index, count) for dims in again)
            second = [
                (local_first if k == 0 else next(extra)) if reads_x else None
                for k, (_, reads_x, _) in enumerate(steps)
            ]
            got = evaluate(steps, local_first, second, [w.shape for w in wanted])
            if got is not None and all(map(np.array_equal, got, wanted)):
                break
        else:
            pytest.fail(f"sharding factor {factor} of {rule} {count} ways: shard {index} differs")


def evaluate(steps, x, second, local_shapes):
    """Returns all results of the chain; None if the local operands do not fit together."""
    found, a = [], x
    for k, (rule, _, apply) in enumerate(steps):
        shape = [math.prod(rule.factor_sizes[f] for f in fs) for fs in rule.results[0]]
        local = shape if local_shapes is None else local_shapes[k]
        try:
            a = apply(a, second[k], local)
        except ValueError:
            return None
        found.append(a)
    return found
