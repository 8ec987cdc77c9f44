"""The extra cost of keeping a reduction that shares its readers' kernel, while its neighbours are
recomputed.

The maximum and the sum of a softmax, or the mean and the variance of a normalisation, are never in
memory if the compiler makes one kernel of reductions and readers (`Kernel.rows`). Readers in
another phase reduce the rows again, in their own kernels. The barrier of a recomputation
(`kiwi.emit.needed_barriers`) prevents both effects if the reduction itself is kept and

1. the rows are computed again, and their readers read the first reduction; or
2. a reader of the reduction runs again, and reads the first reduction.

The first reduction is then a kernel of its own (`ShardingStrategy.apart_seconds`), which reads all
rows once more. This kernel takes many times as long as recomputing the reduction. If both
conditions hold, the price counts twice.

A sum of costly functions that the backward pass reads as well becomes a kernel of its own if it is
kept. It also becomes one if the end of its kernel is recomputed and does not repeat the sum
(`RowReduction`).

A unit in the kernel of an earlier unit (`Kernel.shared`) gets a kernel of its own if it is
recomputed and the earlier unit is not.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from kiwi.hlo.units import Unit
from kiwi.kernels.graph import KernelGraph
from kiwi.memory.residency import Residency
from kiwi.problem.edges import classes
from kiwi.problem.overlap import Overlap
from kiwi.solver.problem import Edge


@dataclass(frozen=True, eq=False)
class UnitOptions:
    """The options of a unit's node, strategy-major.

    - `node`: the node's number in the problem.
    - `apart_seconds`: by strategy, the extra seconds of a kernel of its own.
    """

    node: int
    apart_seconds: np.ndarray
    residencies: tuple[Residency, ...]


def reductions_apart(
    kernels: KernelGraph,
    options: Callable[[int], UnitOptions],
    overlap: Overlap,
    *,
    with_parts: bool,
) -> Iterator[Edge]:
    """Yields, for each reduction in its readers' kernel, the edge from the unit that yields the
    rows and the edge to the reader that ends the kernel. `options` returns the options of the unit
    with an index."""
    units = kernels.units
    for index, reduction in sorted(kernels.rows.items()):
        unit, unit_options = units.units[index], options(index)
        if reduction.repeats or not unit_options.apart_seconds.any():
            continue
        build, reader = _Builder(unit, unit_options, overlap, with_parts), options(reduction.reader)
        if reduction.is_summed_once:
            yield from build.edge(
                reader, lambda read, summed: read.recomputes and summed.recomputes
            )
            continue
        if reduction.rows in units.producer:
            yield from build.edge(options(units.producer[reduction.rows]), _rows_come_again(unit))
        yield from build.edge(
            reader, lambda read, summed: read.recomputes and not summed.recomputes
        )


def recomputed_apart(
    kernels: KernelGraph,
    options: Callable[[int], UnitOptions],
    overlap: Overlap,
    *,
    with_parts: bool,
) -> Iterator[Edge]:
    """Yields, for each unit in the kernel of an earlier unit, the edge from the earlier unit.
    Parameters: as in `reductions_apart`."""
    for index, shared in sorted(kernels.shared.items()):
        unit_options = options(index)
        if unit_options.apart_seconds.any():
            build = _Builder(kernels[index].unit, unit_options, overlap, with_parts)
            first = options(shared.first)
            yield from build.edge(
                first, lambda earlier, later: later.recomputes and not earlier.recomputes
            )


def _rows_come_again(unit: Unit) -> Callable[[Residency, Residency], bool]:
    def holds(rows: Residency, own: Residency) -> bool:
        again_at = rows.again_at
        if again_at is None or own.recomputes:
            return False
        return unit.index < again_at <= own.end

    return holds


@dataclass(frozen=True, eq=False)
class _Builder:
    """Builds the edges of one reduction. `own` holds the options of its unit."""

    unit: Unit
    own: UnitOptions
    overlap: Overlap
    with_parts: bool

    def edge(
        self, other: UnitOptions, holds: Callable[[Residency, Residency], bool]
    ) -> Iterator[Edge]:
        """Yields the edge between this unit and `other`, or nothing if the price is never paid.
        `holds` says whether the price is paid, given the residencies of `other` and this unit."""
        residencies = self.own.residencies
        paid = np.array(
            [
                [holds(other_residency, residency) for residency in residencies]
                for other_residency in other.residencies
            ]
        )
        if not paid.any():
            return
        other_classes, first_others = classes(paid)
        own_classes, first_owns = classes(paid.T)
        seconds, number = np.unique(self.own.apart_seconds, return_inverse=True)
        table = np.multiply.outer(paid[np.ix_(first_others, first_owns)], seconds)
        costs = table.reshape(len(first_others), -1)
        own_lines = np.add.outer(number, len(seconds) * np.array(own_classes)).ravel()
        other_lines = np.tile(other_classes, len(other.apart_seconds))
        if other.node < self.own.node:
            yield self._edge(other.node, self.own.node, costs, other_lines, own_lines)
        else:
            yield self._edge(self.own.node, other.node, costs.T, own_lines, other_lines)

    def _edge(
        self, tail: int, head: int, costs: np.ndarray, tails: np.ndarray, heads: np.ndarray
    ) -> Edge:
        parts = {"compute": costs} if self.with_parts else {}
        return Edge(tail, head, costs, parts, tails, heads, self.overlap.apart(self.unit, costs))
