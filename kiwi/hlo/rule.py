"""Sharding rules: which dimensions of an operator's tensors are sharded together.

Rules have Shardy's form. Every dimension of every operand and result is a list of *factors*, from
major to minor. A factor that occurs in several tensors is sharded alike in all of them.
`RuleComposer` joins the rules of operators that are executed as one (an equation that lowers to
several operators, or a fusion) into a single rule over their outer operands and results.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Dims = tuple[tuple[int, ...], ...]
"""For each dimension of a tensor, the indices of its factors, from major to minor."""


@dataclass(frozen=True)
class ShardingRule:
    """The sharding rule of an operator.

    - `factor_sizes[f]`: the size of factor `f`.
    - `operands`, `results`: the `Dims` of each tensor.
    - `reduction`: the factors that the operator sums over. Sharding one leaves partial sums.
    - `blocked`: the factors that must stay whole. Sharding one needs communication that the rule
      does not describe (sorting, halo exchange, ...).
    """

    factor_sizes: tuple[int, ...]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    reduction: frozenset[int] = frozenset()
    blocked: frozenset[int] = frozenset()


def elementwise_rule(
    shape: Sequence[int], operand_count: int, result_count: int = 1
) -> ShardingRule:
    """Returns the rule of an elementwise operator: all tensors have the same shape, and each
    dimension is one factor."""
    dims = tuple((i,) for i in range(len(shape)))
    return ShardingRule(tuple(shape), (dims,) * operand_count, (dims,) * result_count)


def independent_rule(
    operand_shapes: Sequence[Sequence[int]],
    result_shapes: Sequence[Sequence[int]],
    *,
    blocked: bool,
) -> ShardingRule:
    """Returns a rule in which every dimension of every tensor is a factor of its own.

    `blocked`: whether all factors must stay whole.
    """
    sizes: list[int] = []

    def fresh(shape: Sequence[int]) -> Dims:
        dims = tuple((len(sizes) + i,) for i in range(len(shape)))
        sizes.extend(shape)
        return dims

    operands = tuple(fresh(tensor_shape) for tensor_shape in operand_shapes)
    results = tuple(fresh(tensor_shape) for tensor_shape in result_shapes)
    held = frozenset(range(len(sizes))) if blocked else frozenset()
    return ShardingRule(tuple(sizes), operands, results, blocked=held)


def identity_rule(shapes: Sequence[Sequence[int]]) -> ShardingRule:
    """Returns the rule of an operator whose result k is operand k, and whose operands share no
    factors."""
    rule = independent_rule(shapes, (), blocked=False)
    return ShardingRule(rule.factor_sizes, rule.operands, rule.operands)


@dataclass(frozen=True)
class ComposedRule:
    """The joint rule of several operators that are executed as one.

    - `reads`: the key and the `Dims` of each outer operand. A key that is read with different
      `Dims` has an entry for each.
    - `results`: the `Dims` of each result.
    - `reduction`, `blocked`: as in `ShardingRule`.
    - `operator_factors[k]`: the factors of the `k`-th operator.
    - `operator_operands[k]`, `operator_results[k]`: the keys and `Dims` of the `k`-th operator's
      operands and results.
    """

    factor_sizes: tuple[int, ...]
    reads: tuple[tuple[Any, Dims], ...]
    results: tuple[Dims, ...]
    reduction: frozenset[int]
    blocked: frozenset[int]
    operator_factors: tuple[frozenset[int], ...]
    operator_operands: tuple[tuple[tuple[Any, Dims], ...], ...] = ()
    operator_results: tuple[tuple[tuple[Any, Dims], ...], ...] = ()

    @property
    def shardable(self) -> tuple[int, ...]:
        """The factors that may be sharded: factors of a result and reduction factors, without
        blocked ones."""
        seen = {factor for dims in self.results for factors in dims for factor in factors}
        usable = (seen | self.reduction) - self.blocked
        return tuple(factor for factor in range(len(self.factor_sizes)) if factor in usable)

    def as_rule(self) -> ShardingRule:
        """Returns the same rule as a `ShardingRule`, with the operands in the order of `reads`."""
        operands = tuple(dims for _, dims in self.reads)
        return ShardingRule(self.factor_sizes, operands, self.results, self.reduction, self.blocked)


class _Factor:
    """A node of a union-find over factors.

    - `parent`: the factor that represents this one after a join; None before.
    - `parts`: the factors that replace this one after a split, from major to minor.
    """

    __slots__ = ("blocked", "parent", "parts", "reduction", "size")

    def __init__(self, size: int, *, reduction: bool = False, blocked: bool = False) -> None:
        self.size = size
        self.reduction = reduction
        self.blocked = blocked
        self.parent: _Factor | None = None
        self.parts: tuple[_Factor, ...] = ()

    def leaves(self) -> list["_Factor"]:
        """Returns the factors that stand for this one: itself, its representative, or its parts."""
        if self.parent is not None:
            return self.parent.leaves()
        if self.parts:
            return [leaf for part in self.parts for leaf in part.leaves()]
        return [self]

    def split(self, major_size: int) -> None:
        """Replaces the factor by a major part of size `major_size` and a minor part."""
        minor_size = self.size // major_size
        self.parts = tuple(
            _Factor(size, reduction=self.reduction, blocked=self.blocked)
            for size in (major_size, minor_size)
        )

    def join(self, other: "_Factor") -> None:
        """Makes this leaf the representative of another leaf of the same size."""
        if self is other:
            return
        other.parent = self
        self.reduction |= other.reduction
        self.blocked |= other.blocked


def _expand(factors: Iterable[_Factor]) -> list[_Factor]:
    """Returns the leaves of factors, without leaves of size 1, which are never sharded."""
    return [leaf for factor in factors for leaf in factor.leaves() if leaf.size > 1]


def _unify(first: Sequence[_Factor], second: Sequence[_Factor]) -> None:
    """Makes two lists of factors of the same dimension agree, from major to minor.

    If one of two different sizes divides the other, the larger factor is split. Otherwise the rest
    of both lists is blocked, because no sharding of one list is a sharding of the other.
    """
    while True:
        pending = _differing_suffixes(first, second)
        if pending is None:
            _block_rest(first, second)
            return
        first_rest, second_rest = pending
        if first_rest[0].size == second_rest[0].size:
            first_rest[0].join(second_rest[0])
        elif first_rest[0].size % second_rest[0].size == 0:
            first_rest[0].split(second_rest[0].size)
        elif second_rest[0].size % first_rest[0].size == 0:
            second_rest[0].split(first_rest[0].size)
        else:
            for factor in (*first_rest, *second_rest):
                factor.blocked = True
            return


def _block_rest(first: Sequence[_Factor], second: Sequence[_Factor]) -> None:
    """Blocks the factors that one of two lists has beyond the other.

    The lists differ in length if an operator (a pad) widens a dimension of one element. The
    operator has no factor for the elements that it adds, so readers must not cut them either.
    """
    first_leaves, second_leaves = _expand(first), _expand(second)
    for factor in (*first_leaves[len(second_leaves) :], *second_leaves[len(first_leaves) :]):
        factor.blocked = True


def _differing_suffixes(
    first: Sequence[_Factor], second: Sequence[_Factor]
) -> tuple[list[_Factor], list[_Factor]] | None:
    first_leaves, second_leaves = _expand(first), _expand(second)
    k = 0
    while k < min(len(first_leaves), len(second_leaves)) and first_leaves[k] is second_leaves[k]:
        k += 1
    return (
        (first_leaves[k:], second_leaves[k:])
        if k < min(len(first_leaves), len(second_leaves))
        else None
    )


class RuleComposer:
    """Joins rules along the values between their operators."""

    def __init__(self) -> None:
        self._dims: dict[Hashable, list[list[_Factor]]] = {}
        self._reads: list[tuple[Hashable, list[list[_Factor]]]] = []
        self._operators: list[list[_Factor]] = []
        self._operands: list[list[tuple[Hashable, list[list[_Factor]]]]] = []
        self._results: list[list[tuple[Hashable, list[list[_Factor]]]]] = []

    def add(
        self, rule: ShardingRule, operands: Sequence[Hashable], results: Sequence[Hashable]
    ) -> None:
        """Adds an operator with its rule.

        - `operands`, `results`: the keys of its tensors. Tensors with the key None are ignored. An
          operand whose key is no result of an earlier operator becomes an outer read.
        """
        factors = [
            _Factor(size, reduction=number in rule.reduction, blocked=number in rule.blocked)
            for number, size in enumerate(rule.factor_sizes)
        ]
        self._operators.append(factors)

        def tensors(
            keys: Sequence[Hashable], found: Sequence[Dims]
        ) -> list[tuple[Hashable, list[list[_Factor]]]]:
            return [
                (key, [[factors[number] for number in numbers] for numbers in dims])
                for key, dims in zip(keys, found, strict=True)
                if key is not None
            ]

        self._operands.append(tensors(operands, rule.operands))
        self._results.append(tensors(results, rule.results))
        for key, dims in self._operands[-1]:
            self._read(key, dims)
        self._dims.update(self._results[-1])

    def _read(self, key: Hashable, dims: list[list[_Factor]]) -> None:
        if key not in self._dims:
            self._reads.append((key, dims))
            return
        for known_factors, read_factors in zip(self._dims[key], dims, strict=True):
            _unify(known_factors, read_factors)

    def compose(self, results: Sequence[Hashable]) -> ComposedRule:
        """Returns the joint rule. `results`: the keys of its results."""
        index: dict[_Factor, int] = {}

        def number(dims: list[list[_Factor]]) -> Dims:
            return tuple(
                tuple(index.setdefault(leaf, len(index)) for leaf in _expand(factors))
                for factors in dims
            )

        reads = tuple(dict.fromkeys((key, number(dims)) for key, dims in self._reads))
        out = tuple(number(self._dims[key]) for key in results)
        per_operator = tuple(
            frozenset(index.setdefault(leaf, len(index)) for leaf in _expand(factors))
            for factors in self._operators
        )
        operands, yielded = (
            tuple(tuple((key, number(dims)) for key, dims in tensors) for tensors in side)
            for side in (self._operands, self._results)
        )
        leaves = list(index)
        tensors = [dims for _, dims in reads] + list(out)
        return ComposedRule(
            tuple(leaf.size for leaf in leaves),
            reads,
            out,
            frozenset(index[leaf] for leaf in leaves if leaf.reduction),
            frozenset(index[leaf] for leaf in leaves if leaf.blocked) | _repeated(tensors),
            per_operator,
            operands,
            yielded,
        )


def _repeated(tensors: Iterable[Dims]) -> frozenset[int]:
    """Returns the factors that occur twice in one tensor. A mesh axis cannot shard both places."""
    repeated = set()
    for dims in tensors:
        flat = [factor for factors in dims for factor in factors]
        repeated.update(factor for factor in flat if flat.count(factor) > 1)
    return frozenset(repeated)
