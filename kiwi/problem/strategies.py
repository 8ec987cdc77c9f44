"""Sharding strategies of a unit: assignments of mesh axes to the factors of its rule.

Every mesh axis is given to one shardable factor or to none. An axis given to a factor that is
summed over leaves partial sums, which are all-reduced, or reduce-scattered onto a factor of
the result. A strategy then fixes how every operand is expected and how every result is laid
out, what it computes per device and what it communicates.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeGuard

from kiwi.hlo.rule import ComposedRule, Dims
from kiwi.hlo.unit import Unit
from kiwi.hlo.units import UnitGraph
from kiwi.mesh import Collective, DeviceMesh, Price, Provenance, TensorSharding
from kiwi.problem.costs import UnitWork
from kiwi.problem.manual_computations import GivenLayouts, given_layouts
from kiwi.xla.rules.base import CopiedOperands, Rules
from kiwi.xla.rules.max_pooling import found_bytes
from kiwi.xla.rules.partial_sums import summed_elsewhere
from kiwi.xla.rules.partitioner import can_scatter, reduction_collectives

Assignment = tuple[tuple[int, ...], ...]
"""Per factor the mesh axes that shard it, major to minor."""


@dataclass(frozen=True)
class ShardingStrategy:
    """One way to execute a unit on the mesh.

    - `reads`: the sharding expected of each entry of `rule.reads`.
    - `results`: the sharding of each result.
    - `compute_seconds`: per device; `communication_seconds`: of `collectives`. In the body of a
      loop both, and the seconds of each collective, are those of all iterations.
    - `result_bytes`: local bytes of all results together.
    - `workspace_bytes`: local bytes held beyond operands and results while it runs: partial
      sums that are larger than the scattered result, what is alive inside of a region, and what is
      found for the gradient of max pooling (`kiwi.xla.rules.max_pooling`).
    - `compiler_buffers`: bytes of more workspace that the compiler takes
      (`buffers_while_running`): operands that it copies (`Rules.copied_operands`), or, where that
      is more, sums in another place (`kiwi.xla.rules.partial_sums`).
    - `cuts_sums`: XLA does not scatter these partial sums; it all-reduces them and cuts.
    - `compute_provenance`: where `compute_seconds` come from.
    """

    reads: tuple[TensorSharding, ...]
    results: tuple[TensorSharding, ...]
    compute_seconds: float
    collectives: tuple[Collective, ...]
    result_bytes: int
    workspace_bytes: int
    cuts_sums: bool = False
    compute_provenance: Provenance = Provenance.ANALYTIC
    compiler_buffers: tuple[int, ...] = ()

    @property
    def communication_seconds(self) -> float:
        """Time of the strategy's own collectives."""
        return sum(c.seconds for c in self.collectives)

    @property
    def buffers_while_running(self) -> tuple[int, ...]:
        """The bytes of each buffer of workspace."""
        return self.own_buffers + self.compiler_buffers

    @property
    def own_buffers(self) -> tuple[int, ...]:
        """Those that every compiler takes."""
        return (self.workspace_bytes,) if self.workspace_bytes else ()


def tensor_sharding(
    dims: Dims, sizes: tuple[int, ...], assignment: Mapping[int, tuple[int, ...]], mesh: DeviceMesh
) -> TensorSharding | None:
    """The layout of a tensor whose factors are sharded as assigned.

    A minor factor of a dimension can be sharded only where all factors before it are cut to
    single elements; otherwise its shards would not be contiguous, and None is returned.
    """
    found = []
    for factors in dims:
        axes: tuple[int, ...] = ()
        cut_coarsely = False
        for factor in factors:
            own = assignment.get(factor, ())
            if own and cut_coarsely:
                return None
            axes += own
            cut_coarsely |= prod(mesh.shape[a] for a in own) < sizes[factor]
        found.append(axes)
    return TensorSharding(tuple(found))


def enumerate_strategies(
    units: UnitGraph, unit: Unit, mesh: DeviceMesh, rules: Rules
) -> tuple[ShardingStrategy, ...]:
    """All strategies that divide evenly, the cheaper of any two with the same layouts."""
    work, copied = UnitWork.of(units, unit, mesh), rules.copied_operands(units, unit)
    given = given_layouts(units, unit, mesh)
    if given is not None:
        return (_given_strategy(units, unit, mesh, rules, work, given),)
    best: dict[tuple[object, ...], ShardingStrategy] = {}
    for assignment in _assignments(unit.rule, mesh):
        computation = _computation(units, unit, mesh, rules, work, copied, assignment)
        if computation is None:
            continue
        for scatter in _scatters(unit.rule, assignment, mesh):
            strategy = _strategy(units, unit, mesh, rules, computation, scatter)
            if strategy is None:
                continue
            if work.workspace_bytes:
                held = strategy.workspace_bytes + work.workspace_bytes
                strategy = replace(strategy, workspace_bytes=held)
            key = (strategy.reads, strategy.results)
            if key not in best or _seconds(strategy) < _seconds(best[key]):
                best[key] = strategy
    return tuple(best.values())


def _given_strategy(
    units: UnitGraph,
    unit: Unit,
    mesh: DeviceMesh,
    rules: Rules,
    work: UnitWork,
    given: GivenLayouts,
) -> ShardingStrategy:
    """The only way to execute what says itself how everything lies; its work is one device's."""
    result_bytes = _local_bytes(units, unit, mesh, rules, given.results)
    read_shards = [read.shard_count(mesh.shape) for read in given.reads]
    compute = work.price({}, read_shards, result_bytes)
    return ShardingStrategy(
        given.reads,
        given.results,
        compute.seconds,
        given.collectives,
        result_bytes,
        work.workspace_bytes,
        compute_provenance=compute.provenance,
    )


def shards_of_strategies(unit: Unit, mesh: DeviceMesh) -> Iterator[dict[int, int]]:
    """Into how many pieces each assignment of mesh axes cuts the factors of a unit."""
    for assignment in _assignments(unit.rule, mesh):
        yield {f: prod(mesh.shape[a] for a in axes) for f, axes in assignment.items()}


def _seconds(strategy: ShardingStrategy) -> float:
    return strategy.compute_seconds + strategy.communication_seconds


def _assignments(rule: ComposedRule, mesh: DeviceMesh) -> Iterator[dict[int, tuple[int, ...]]]:
    """Every even assignment of the mesh's axes to shardable factors."""
    choices = [None, *rule.shardable]
    for choice in itertools.product(choices, repeat=len(mesh.nontrivial_axes)):
        assignment: dict[int, tuple[int, ...]] = {}
        for axis, factor in zip(mesh.nontrivial_axes, choice, strict=True):
            if factor is not None:
                assignment[factor] = (*assignment.get(factor, ()), axis)
        if _divides(rule, assignment, mesh):
            yield assignment


def _divides(
    rule: ComposedRule, assignment: Mapping[int, tuple[int, ...]], mesh: DeviceMesh
) -> bool:
    return all(
        rule.factor_sizes[factor] % prod(mesh.shape[a] for a in axes) == 0
        for factor, axes in assignment.items()
    )


def _result_factors(rule: ComposedRule) -> frozenset[int]:
    return frozenset(f for dims in rule.results for factors in dims for f in factors)


def _scatters(
    rule: ComposedRule, assignment: dict[int, tuple[int, ...]], mesh: DeviceMesh
) -> Iterator[dict[int, int]]:
    """For the axes that leave partial sums, the result factor to scatter onto, if any."""
    results = _result_factors(rule)
    partial = [a for f, axes in assignment.items() if f not in results for a in axes]
    targets = sorted(results - rule.blocked) if len(rule.results) == 1 else []
    for choice in itertools.product([None, *targets], repeat=len(partial)):
        scatter = {a: f for a, f in zip(partial, choice, strict=True) if f is not None}
        if _divides(rule, _after_scatter(assignment, scatter), mesh):
            yield scatter


def _after_scatter(
    assignment: dict[int, tuple[int, ...]], scatter: dict[int, int]
) -> dict[int, tuple[int, ...]]:
    """The assignment of the result: scattered axes are minor to those already there."""
    after = dict(assignment)
    for axis, factor in scatter.items():
        after[factor] = (*after.get(factor, ()), axis)
    return after


@dataclass(frozen=True)
class _Computation:
    """What an assignment fixes, whatever becomes of partial sums.

    - `reads`, `results`: the layouts of operands and of results, partial sums included.
    - `partial`: the mesh axes that leave partial sums.
    - `partial_bytes`: local bytes of all results; `copied`: of each operand that is copied.
    """

    assignment: dict[int, tuple[int, ...]]
    reads: tuple[TensorSharding, ...]
    results: tuple[TensorSharding, ...]
    partial: tuple[int, ...]
    partial_bytes: int
    copied: tuple[int, ...]
    compute: Price


def _computation(
    units: UnitGraph,
    unit: Unit,
    mesh: DeviceMesh,
    rules: Rules,
    work: UnitWork,
    copied: CopiedOperands,
    assignment: dict[int, tuple[int, ...]],
) -> _Computation | None:
    """None where an operand or a result cannot be laid out so."""
    rule = unit.rule
    reads = [tensor_sharding(dims, rule.factor_sizes, assignment, mesh) for _, dims in rule.reads]
    results = [tensor_sharding(d, rule.factor_sizes, assignment, mesh) for d in rule.results]
    if not (_all_exist(reads) and _all_exist(results)):
        return None
    partial_bytes = _local_bytes(units, unit, mesh, rules, results)
    shards = {f: prod(mesh.shape[a] for a in axes) for f, axes in assignment.items()}
    read_shards = [r.shard_count(mesh.shape) for r in reads]
    kept = _result_factors(rule)
    read_bytes = [b // n for b, n in zip(work.read_bytes, read_shards, strict=True)]
    return _Computation(
        assignment,
        tuple(reads),
        tuple(results),
        tuple(sorted(a for f, axes in assignment.items() if f not in kept for a in axes)),
        partial_bytes,
        copied.buffers(shards, read_bytes, partial_bytes),
        work.price(shards, read_shards, partial_bytes),
    )


def _strategy(
    units: UnitGraph,
    unit: Unit,
    mesh: DeviceMesh,
    rules: Rules,
    found: _Computation,
    scatter: dict[int, int],
) -> ShardingStrategy | None:
    """The strategy that scatters each axis of `scatter` onto its factor."""
    rule = unit.rule
    results, dims = found.results, {}
    if scatter:
        after = _after_scatter(found.assignment, scatter)
        # Only a single result is scattered; several are all-reduced as one.
        layout = tensor_sharding(rule.results[0], rule.factor_sizes, after, mesh)
        if layout is None:
            return None
        results = (layout,)
        dim_of_factor = {f: d for d, factors in enumerate(rule.results[0]) for f in factors}
        dims = {axis: dim_of_factor[factor] for axis, factor in scatter.items()}
    collectives: tuple[Collective, ...] = ()
    sums: tuple[int, ...] = ()
    scatters = bool(scatter) and can_scatter(found.results[0], found.partial, dims)
    if found.partial:
        source, trips = found.results[0], units.trips(unit)
        summed = source, found.partial, dims, _moved_bytes(units, unit, mesh, rules, found)
        reduced = reduction_collectives(mesh, *summed, rules.has_reduce_scatter)
        collectives = tuple(replace(c, seconds=trips * c.seconds) for c in reduced)
        scattered = dims.values() if scatters else ()
        cuts = [prod(mesh.shape[a] for a in axes) for axes in source.dims]
        if rules.sums_elsewhere(units.graph.program.equations[unit.root], cuts, scattered):
            sums = summed_elsewhere(units, unit, mesh, rules, found.reads, found.partial_bytes)
    result_bytes = _local_bytes(units, unit, mesh, rules, results)
    return ShardingStrategy(
        found.reads,
        results,
        found.compute.seconds,
        collectives,
        result_bytes,
        found.partial_bytes - result_bytes + found_bytes(units, unit, result_bytes),
        bool(scatter) and not scatters,
        found.compute.provenance,
        max(found.copied, sums, key=sum),
    )


def _local_bytes(
    units: UnitGraph,
    unit: Unit,
    mesh: DeviceMesh,
    rules: Rules,
    layouts: Sequence[TensorSharding],
) -> int:
    """Bytes of one device's part of all results."""
    pairs = zip(unit.outputs, layouts, strict=True)
    return sum(rules.local_bytes(units, value, layout, mesh.shape) for value, layout in pairs)


def _moved_bytes(
    units: UnitGraph, unit: Unit, mesh: DeviceMesh, rules: Rules, found: _Computation
) -> int:
    """One device's partial sums, as large as they are when collectives move them."""
    values = units.graph.program.values
    result, pairs = values[unit.outputs[0]], zip(unit.outputs, found.results, strict=True)
    partial_bytes = sum(values[v].size_bytes // s.shard_count(mesh.shape) for v, s in pairs)
    moved = rules.moved_itemsize(str(result.dtype), result.itemsize)
    return partial_bytes * moved // result.itemsize


def _all_exist(layouts: list[TensorSharding | None]) -> TypeGuard[list[TensorSharding]]:
    return None not in layouts
