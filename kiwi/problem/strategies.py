"""Sharding strategies of a unit: assignments of mesh axes to the factors of its rule.

Every mesh axis is assigned to one shardable factor or to none. If an axis is assigned to a factor
that is summed over, the devices have partial sums, which are all-reduced, or reduce-scattered onto
a factor of the result. A strategy fixes the layout that each operand is expected in, the layout of
each result, the computation of each device, and its communication.
"""

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeGuard

from kiwi.hlo.rule import ComposedRule, Dims
from kiwi.hlo.units import Unit
from kiwi.kernels.graph import KernelGraph
from kiwi.kernels.partitioner import can_scatter, reduction_collectives
from kiwi.mesh import Collective, DeviceMesh, Price, Provenance, TensorSharding
from kiwi.mesh.collective_kinds import COLLECTIVE_PERMUTE
from kiwi.mesh.collectives import collective
from kiwi.problem.kernel_kind import kernel_kinds, summed_value
from kiwi.problem.manual_computations import GivenLayouts


@dataclass(frozen=True)
class ShardingStrategy:
    """One way to execute a unit on the mesh.

    - `reads`: the expected sharding of each entry of `rule.reads`.
    - `results`: the sharding of each result.
    - `compute_seconds`: the computation of one device, over all iterations of a loop.
    - `collectives`: the strategy's own collectives, each with its seconds over all iterations.
    - `result_bytes`: the local bytes of all results together.
    - `workspace_bytes`: the local bytes beyond operands and results while the unit runs: partial
      sums that are larger than the scattered result, values alive inside a region, and positions
      for the gradient of max pooling (`Kernel.workspace_of_result`).
    - `cuts_sums`: whether XLA all-reduces the partial sums and slices, instead of scattering them.
    - `compute_provenance`: the provenance of `compute_seconds`.
    - `compiler_buffers`: the bytes of further buffers that the compiler holds while the unit runs:
      copies of operands (`Kernel.workspace`), or sums in another place
      (`TargetFacts.sums_elsewhere`), whichever are more.
    - `apart_seconds`: the extra time of a kernel of its own, for a unit without one
      (`kiwi.problem.reductions_apart`).
    - `again_seconds`: the time of a second computation.
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
    apart_seconds: float = 0.0
    again_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """The time of one computation, collectives included."""
        return self.compute_seconds + self.communication_seconds

    @property
    def communication_seconds(self) -> float:
        """The time of the strategy's own collectives."""
        return sum(move.seconds for move in self.collectives)

    @property
    def buffers_while_running(self) -> tuple[int, ...]:
        """The bytes of each buffer of workspace."""
        return self.own_buffers + self.compiler_buffers

    @property
    def own_buffers(self) -> tuple[int, ...]:
        """The buffers of workspace that every compiler allocates."""
        return (self.workspace_bytes,) if self.workspace_bytes else ()


Assignment = dict[int, tuple[int, ...]]
"""For each sharded factor, the mesh axes that cut the factor, major to minor."""


def tensor_sharding(
    dims: Dims, sizes: tuple[int, ...], assignment: Assignment, mesh: DeviceMesh
) -> TensorSharding | None:
    """Returns the layout of a tensor whose factors are sharded as assigned, or None.

    - `dims`: the factors of each dimension. `sizes`: the size of each factor.

    A minor factor of a dimension can be sharded only if all factors before it are cut to single
    elements. Otherwise its shards would not be contiguous, and None is returned.
    """
    dims_axes = []
    for factors in dims:
        axes: tuple[int, ...] = ()
        cut_coarsely = False
        for factor in factors:
            factor_axes = assignment.get(factor, ())
            if factor_axes and cut_coarsely:
                return None
            axes += factor_axes
            cut_coarsely |= prod(mesh.shape[axis] for axis in factor_axes) < sizes[factor]
        dims_axes.append(axes)
    return TensorSharding(tuple(dims_axes))


def enumerate_strategies(
    kernels: KernelGraph, unit: Unit, mesh: DeviceMesh
) -> tuple[ShardingStrategy, ...]:
    """Returns all strategies of a unit that divide every sharded factor evenly. Of several with the
    same layouts only the fastest is listed."""
    return _Enumeration(kernels, unit, mesh).strategies()


def shards_of_strategies(unit: Unit, mesh: DeviceMesh) -> Iterator[dict[int, int]]:
    """Yields, for each even assignment of mesh axes, the number of pieces of each sharded
    factor."""
    return (_shards(assignment, mesh) for assignment in _assignments(unit.rule, mesh))


def _shards(assignment: Assignment, mesh: DeviceMesh) -> dict[int, int]:
    return {factor: prod(mesh.shape[axis] for axis in axes) for factor, axes in assignment.items()}


def _assignments(rule: ComposedRule, mesh: DeviceMesh) -> Iterator[Assignment]:
    """Yields every even assignment of the mesh's axes to shardable factors."""
    extended = _extensions(rule, {}, mesh.nontrivial_axes, rule.shardable, mesh)
    return (assignment for _, assignment in extended)


def _extensions(
    rule: ComposedRule,
    assignment: Assignment,
    axes: Sequence[int],
    factors: Iterable[int],
    mesh: DeviceMesh,
) -> Iterator[tuple[dict[int, int], Assignment]]:
    """Yields every way to assign each of `axes` to one of `factors` or to none that divides evenly:
    the factor of each assigned axis, and `assignment` extended by these axes. The new axes of a
    factor are minor to its earlier axes."""
    for choice in itertools.product([None, *factors], repeat=len(axes)):
        factor_of_axis = {
            new_axis: new_factor
            for new_axis, new_factor in zip(axes, choice, strict=True)
            if new_factor is not None
        }
        after = dict(assignment)
        for axis, factor in factor_of_axis.items():
            after[factor] = (*after.get(factor, ()), axis)
        if all(
            rule.factor_sizes[new_factor] % n == 0 for new_factor, n in _shards(after, mesh).items()
        ):
            yield factor_of_axis, after


@dataclass(frozen=True)
class _Computation:
    """The part of a strategy that an assignment fixes, before partial sums are summed.

    - `reads`: the layouts of operands. `results`: the layouts of results, as partial sums.
    - `partial`: the mesh axes over which results are partial sums.
    - `partial_bytes`: the local bytes of all results.
    - `beside`: the bytes of each buffer that the compiler holds meanwhile.
    - `region_bytes`: the bytes that a region holds beside its results.
    - `compute`, `apart_seconds`, `again_seconds`: as in `ShardingStrategy`.
    """

    reads: tuple[TensorSharding, ...]
    results: tuple[TensorSharding, ...]
    partial: tuple[int, ...]
    partial_bytes: int
    beside: tuple[int, ...]
    region_bytes: int
    compute: Price
    apart_seconds: float
    again_seconds: float


class _Enumeration:
    """Enumerates the strategies of one unit."""

    def __init__(self, kernels: KernelGraph, unit: Unit, mesh: DeviceMesh) -> None:
        units = kernels.units
        self._units, self._unit, self._mesh = units, unit, mesh
        self._kernel, self._facts = kernels[unit.index], kernels.facts
        self._storage = kernels.storage
        self._rule = unit.rule
        self._kind = kernel_kinds(kernels, mesh).of(unit)
        self._work = self._kind.work
        self._values = [units.graph.program.values[output] for output in unit.outputs]
        self._result_factors = {
            factor for dims in unit.rule.results for factors in dims for factor in factors
        }

    def strategies(self) -> tuple[ShardingStrategy, ...]:
        """All strategies of the unit, the fastest for each combination of layouts."""
        if self._kind.given is not None:
            return (self._given(self._kind.given),)
        best: dict[tuple[object, ...], ShardingStrategy] = {}
        for assignment in _assignments(self._rule, self._mesh):
            computation = self._computation(assignment)
            if computation is None:
                continue
            for scatter, after in self._scatters(assignment):
                strategy = self._strategy(computation, scatter, after)
                if strategy is None:
                    continue
                key = (strategy.reads, strategy.results)
                if key not in best or strategy.seconds < best[key].seconds:
                    best[key] = strategy
        return tuple(best.values())

    def _given(self, given: GivenLayouts) -> ShardingStrategy:
        """Returns the only strategy of a unit whose layouts are all given. Its work is already that
        of one device."""
        read_bytes, result_bytes = self._read_bytes(given.reads), self._local_bytes(given.results)
        compute = self._work.price({}, read_bytes, result_bytes)
        return ShardingStrategy(
            given.reads,
            given.results,
            compute.seconds,
            given.collectives,
            self._stored_bytes(given),
            self._work.workspace_bytes,
            compute_provenance=compute.provenance,
            again_seconds=compute.seconds,
        )

    def _scatters(self, assignment: Assignment) -> Iterator[tuple[dict[int, int], Assignment]]:
        """Yields, for the axes that leave partial sums, each choice of result factors to scatter
        onto, and the assignment of the result."""
        rule, results = self._rule, self._result_factors
        partial = [
            axis for factor, axes in assignment.items() if factor not in results for axis in axes
        ]
        targets = sorted(results - rule.blocked) if len(rule.results) == 1 else []
        return _extensions(rule, assignment, partial, targets, self._mesh)

    def _layout(self, dims: Dims, assignment: Assignment) -> TensorSharding | None:
        return tensor_sharding(dims, self._rule.factor_sizes, assignment, self._mesh)

    def _computation(self, assignment: Assignment) -> _Computation | None:
        """Returns the computation of an assignment; None if an operand or a result has no layout
        with this assignment."""
        rule, work = self._rule, self._work
        reads = [self._layout(dims, assignment) for _, dims in rule.reads]
        results = [self._layout(dims, assignment) for dims in rule.results]
        if not (_all_exist(reads) and _all_exist(results)):
            return None
        result_factors = self._result_factors
        partial = sorted(
            axis
            for factor, axes in assignment.items()
            if factor not in result_factors
            for axis in axes
        )
        partial_bytes = self._local_bytes(results)
        shards = _shards(assignment, self._mesh)
        read_bytes = self._read_bytes(reads)
        compute = work.price(shards, read_bytes, partial_bytes)
        return _Computation(
            tuple(reads),
            tuple(results),
            tuple(partial),
            partial_bytes,
            self._kernel.workspace.buffers(shards, read_bytes, partial_bytes),
            work.workspace_bytes // prod(shards.values()),
            compute,
            work.apart_seconds(shards, read_bytes, partial_bytes),
            work.again_seconds(compute, shards, read_bytes, partial_bytes),
        )

    def _read_bytes(self, layouts: Sequence[TensorSharding]) -> list[int]:
        """Returns the local bytes of each read, as the values lie in memory."""
        shape, storage = self._mesh.shape, self._storage
        stored_reads = zip(self._work.read_bytes, self._rule.reads, layouts, strict=True)
        return [
            int(stored_bytes // layout.shard_count(shape) * storage.padding(value, layout, shape))
            for stored_bytes, (value, _), layout in stored_reads
        ]

    def _strategy(
        self, found: _Computation, scatter: dict[int, int], after: Assignment
    ) -> ShardingStrategy | None:
        """Returns the strategy that scatters each axis of `scatter` onto its factor; None if the
        result has no layout with the assignment `after`."""
        results, dims = found.results, {}
        if scatter:
            # Only a single result is scattered; several are all-reduced as one.
            layout = self._layout(self._rule.results[0], after)
            if layout is None:
                return None
            results = (layout,)
            dim_of_factor = {
                result_factor: dim
                for dim, factors in enumerate(self._rule.results[0])
                for result_factor in factors
            }
            dims = {axis: dim_of_factor[factor] for axis, factor in scatter.items()}
        scatters = bool(scatter) and can_scatter(found.results[0], found.partial, dims)
        result_bytes = self._local_bytes(results)
        workspace_bytes = found.partial_bytes - result_bytes + found.region_bytes
        if self._kernel.workspace_of_result is not None:
            workspace_bytes += self._kernel.workspace_of_result.local_bytes(result_bytes)
        return ShardingStrategy(
            found.reads,
            results,
            found.compute.seconds,
            self._collectives(found, dims) if found.partial else self._shifts(found),
            result_bytes,
            workspace_bytes,
            bool(scatter) and not scatters,
            found.compute.provenance,
            max(found.beside, self._sums(found, dims.values() if scatters else ()), key=sum),
            found.apart_seconds,
            found.again_seconds,
        )

    def _collectives(self, found: _Computation, dims: dict[int, int]) -> tuple[Collective, ...]:
        """Returns the collectives that sum partial sums, with the seconds of all iterations."""
        result, pairs = self._values[0], zip(self._values, found.results, strict=True)
        summand = summed_value(self._units, self._unit)
        itemsize = self._facts.moved_itemsize(summand)
        # Collectives may move partial sums in another dtype than the result's.
        partial_bytes = sum(
            value.size_bytes // layout.shard_count(self._mesh.shape) for value, layout in pairs
        )
        moved_bytes = partial_bytes * itemsize // result.itemsize
        sums = found.results[0], found.partial, dims, moved_bytes
        shape = found.results[0].local_shape(result.shape, self._mesh.shape)
        part = replace(summand, shape=shape, itemsize=itemsize)
        scatters = self._facts.scatters_sums(self._mesh, dims, part)
        share = self._kind.share_of_sums
        reduced = reduction_collectives(self._mesh, *sums, scatters, least_share=share)
        trips = self._units.trips(self._unit)
        summed = tuple(
            replace(reduction, seconds=trips * reduction.seconds) for reduction in reduced
        )
        if not summed:
            return ()
        # Only the last collective is next to the addition.
        *before, summing = summed
        return (*before, replace(summing, seconds=summing.seconds / self._kind.added_first))

    def _shifts(self, found: _Computation) -> tuple[Collective, ...]:
        """Returns the transfers between neighbouring pieces of a kernel's shifted dimension, with
        the seconds of all iterations."""
        equation = self._units.graph.program.equations[self._unit.root]
        kernel = equation.kernel
        if kernel is None or kernel.shifted is None:
            return ()
        dim = kernel.results[0].index((kernel.shifted,))
        axes, (layout, *_) = found.results[0].dims[dim], found.results
        if not axes:
            return ()
        # A device sends one element of the dimension out of its piece.
        pieces = prod(self._mesh.shape[axis] for axis in axes)
        value = self._values[0]
        local_bytes = value.size_bytes // layout.shard_count(self._mesh.shape)
        moved_bytes = local_bytes * pieces // value.shape[dim]
        once = collective(COLLECTIVE_PERMUTE, self._mesh, axes, moved_bytes)
        return (replace(once, seconds=self._units.trips(self._unit) * once.seconds),)

    def _sums(self, found: _Computation, scattered: Collection[int]) -> tuple[int, ...]:
        """Returns the bytes of the buffer that the compiler allocates for sums beside summands and
        result, if it allocates one.

        The buffer may take the place of operands, which have been read by then, but not of the
        step's arguments.
        """
        program, shape = self._units.graph.program, self._mesh.shape
        equation = program.equations[self._unit.root]
        if not found.partial:
            return ()
        cuts = [prod(shape[axis] for axis in axes) for axes in found.results[0].dims]
        if not self._facts.sums_elsewhere(equation, cuts, scattered):
            return ()
        read_bytes = sum(
            self._storage.local_bytes(value, layout, shape)
            for (value, _), layout in zip(self._unit.rule.reads, found.reads, strict=True)
            if program.values[value].producer is not None
        )
        extra_bytes = found.partial_bytes - read_bytes
        return (extra_bytes,) if extra_bytes > 0 else ()

    def _stored_bytes(self, given: GivenLayouts) -> int:
        """Returns the local bytes of the results of a `shard_map` that have buffers of their
        own."""
        shape, stored = (
            self._mesh.shape,
            zip(self._unit.outputs, given.results, given.stored, strict=True),
        )
        return sum(
            self._storage.local_bytes(output, layout, shape)
            for output, layout, has_buffer in stored
            if has_buffer
        )

    def _local_bytes(self, layouts: Sequence[TensorSharding]) -> int:
        """Returns the local bytes of all results in the given layouts."""
        shape, pairs = self._mesh.shape, zip(self._unit.outputs, layouts, strict=True)
        return sum(self._storage.local_bytes(value, layout, shape) for value, layout in pairs)


def _all_exist(layouts: list[TensorSharding | None]) -> TypeGuard[list[TensorSharding]]:
    return None not in layouts
