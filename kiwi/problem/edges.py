"""Cost matrices of the problem's edges.

Options that store or expect a value in the same layout share a row or column of the matrix
(`kiwi.solver.Edge`), here called a line. A line stands for a pair (layout, class of residencies),
layout-major. Equal matrices, as in repeated layers, are built once.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kiwi.hlo.program import Value
from kiwi.kernels.facts import TargetFacts
from kiwi.memory.residency import Residency
from kiwi.mesh import DeviceMesh, ReshardingTable, TensorSharding
from kiwi.mesh.moves import refines
from kiwi.problem.copies import CopyNode, Reader
from kiwi.solver.problem import Edge, Load

_ALWAYS = (Residency(None, 2**31),)


@dataclass(frozen=True, eq=False)
class Side:
    """One end of an edge: the layouts that the node's options store or expect.

    - `node`: the node's number in the problem.
    - `layouts`: the distinct layouts.
    - `layout_of_strategy`: for each strategy, the index of its layout in `layouts`.
    - `residencies`: the node's residencies. An argument has one, which is always live.
    """

    node: int
    layouts: tuple[TensorSharding, ...]
    layout_of_strategy: np.ndarray
    residencies: tuple[Residency, ...]

    @classmethod
    def of(
        cls,
        node: int,
        layouts: Iterable[TensorSharding],
        residencies: tuple[Residency, ...] = _ALWAYS,
    ) -> "Side":
        """Returns the side of a node with the given layout per strategy."""
        index: dict[TensorSharding, int] = {}
        numbers = np.array([index.setdefault(layout, len(index)) for layout in layouts])
        return cls(node, tuple(index), numbers, residencies)

    def lines(self, class_of_residency: Sequence[int] | None = None) -> np.ndarray:
        """Int [options]: the line of each option. `class_of_residency` is the class of each
        residency; by default all are in one class."""
        classes = np.asarray(class_of_residency or [0] * len(self.residencies))
        width = int(classes.max()) + 1
        return (self.layout_of_strategy[:, None] * width + classes[None, :]).ravel()


def resharding_table(
    mesh: DeviceMesh, facts: TargetFacts, value: Value, *, least_share: float = 1.0
) -> ReshardingTable:
    """Returns the resharding table of a value, in the bytes that the compiled program moves.

    For a unit's operand, `value` is the entry of `Kernel.moved`. `least_share`: as in
    `ReshardingTable`.
    """
    return ReshardingTable(mesh, value.shape, facts.moved_itemsize(value), least_share)


@dataclass(frozen=True)
class OverlappingMoves:
    """The moves of an operand that overlap with computation: gathers of dimensions in `dims` and,
    if `others` is set, all moves other than gathers."""

    dims: frozenset[int]
    others: bool

    def has(self, stored: TensorSharding, wanted: TensorSharding) -> bool:
        """Whether the move from layout `stored` to layout `wanted` overlaps."""
        if not refines(stored, wanted):
            return self.others
        pairs = enumerate(zip(stored.dims, wanted.dims, strict=True))
        return all(dim in self.dims for dim, (before, after) in pairs if before != after)


@dataclass(frozen=True, eq=False)
class Operand:
    """A value as a unit reads it.

    - `table`: the prices of resharding between the value's layouts.
    - `trips`: how often the value is resharded in a step.
    - `is_map`: whether the reader is elementwise. It then pays nothing to read a part of the
      device's shard, because XLA fuses the slice.
    - `is_slice`: whether the reader is a slice of a stack. The stack is needed as long as the slice
      has readers.
    - `overlap`: returns the loads of resharding, given the seconds of resharding for the first
      computation and for the recomputation.
    - `moves`: the moves that may overlap; None if all may.
    """

    table: ReshardingTable
    trips: float
    is_map: bool
    is_slice: bool
    overlap: Callable[[np.ndarray, np.ndarray], tuple[Load, ...]]
    moves: OverlappingMoves | None

    def seconds_once(
        self, stored: Sequence[TensorSharding], wanted: Sequence[TensorSharding]
    ) -> np.ndarray:
        """Float [stored, wanted]: the seconds of resharding the value once."""
        seconds = self.table.seconds_matrix(stored, wanted)
        return np.where(self.table.is_cut(stored, wanted), 0.0, seconds) if self.is_map else seconds

    def overlapping(
        self, stored: Sequence[TensorSharding], wanted: Sequence[TensorSharding]
    ) -> np.ndarray:
        """Float [stored, wanted]: 1 if resharding the value may overlap, else 0."""
        if self.moves is None:
            return np.ones((len(stored), len(wanted)))
        return np.array(
            [[self.moves.has(layout, expected) for expected in wanted] for layout in stored], float
        )

    def is_there(self, producer: Residency, reader: Residency) -> bool:
        """Whether the value is live when the reader is recomputed; for a slice, whether the stack
        is live as long as the slice."""
        if self.is_slice:
            return producer.end >= reader.end
        return reader.recompute_at is None or producer.available_at(reader.recompute_at)


@dataclass(frozen=True, eq=False)
class _Matrices:
    """The matrices that edges of equal operands share. `once` and `again` are the seconds of
    resharding that may overlap, for the first computation and for the recomputation."""

    costs: np.ndarray
    parts: dict[str, np.ndarray]
    once: np.ndarray
    again: np.ndarray


class EdgeMatrices:
    """Builds edges, and equal matrices once. `with_parts`: whether costs are split into parts."""

    def __init__(self, *, with_parts: bool) -> None:
        self.with_parts = with_parts
        self._known: dict[object, _Matrices | None] = {}

    def read_edge(self, stored: Side, wanted: Side, operand: Operand) -> Edge | None:
        """The edge from a producer to a reader; None if all its costs are zero.

        A recomputed reader reshards its operand once more. A pair of residencies is forbidden if
        the operand is not live when the reader is recomputed.
        """
        readers = wanted.residencies
        is_there = np.array(
            [
                [operand.is_there(producer, reader) for reader in readers]
                for producer in stored.residencies
            ]
        )
        again = np.array([float(reader.recomputes) for reader in wanted.residencies])
        # Residencies that differ only for third nodes share a line.
        tails, first_tails = classes(is_there)
        heads, first_heads = classes(np.column_stack([is_there.T, again]))
        is_there, again = is_there[np.ix_(first_tails, first_heads)], again[first_heads]
        table, layouts = operand.table, (stored.layouts, wanted.layouts)
        tensor = (table.shape, table.itemsize, table.least_share, operand.trips, operand.is_map)
        key = (*tensor, operand.moves, *layouts, is_there.tobytes(), again.tobytes())
        if key not in self._known:
            seconds = operand.trips * operand.seconds_once(*layouts)
            hideable = seconds * operand.overlapping(*layouts)
            self._known[key] = self._read_matrices(is_there, again, seconds, hideable)
        matrices = self._known[key]
        if matrices is None:
            return None
        lines = stored.lines(tails), wanted.lines(heads)
        costs, parts = matrices.costs, matrices.parts
        loads = operand.overlap(matrices.once, matrices.again)
        return Edge(stored.node, wanted.node, costs, parts, *lines, loads)

    def _read_matrices(
        self, here: np.ndarray, again: np.ndarray, seconds: np.ndarray, hideable: np.ndarray
    ) -> "_Matrices | None":
        """Returns the matrices of resharding for a reader's first computation and its recomputation
        together; None if all costs are zero. `here`: whether the operand is there, by class of
        residencies. `hideable`: the part of `seconds` that may overlap."""
        if not seconds.any() and here.all():
            return None
        penalty = np.where(here, 0.0, np.inf)
        # Axes: stored layout, class of the producer's residency, wanted layout, class of the
        # reader's residency.
        lines = tuple(np.multiply(seconds.shape, here.shape))

        def matrix(seconds: np.ndarray, times: np.ndarray, penalty: np.ndarray) -> np.ndarray:
            priced = seconds[:, None, :, None] * times + penalty[None, :, None, :]
            return priced.reshape(lines)

        free, first_run, parts = np.zeros_like(penalty), np.ones_like(again), {}
        if self.with_parts:
            parts["resharding"] = matrix(seconds, first_run, penalty)
            parts["recompute"] = matrix(seconds, again, free)
        costs = matrix(seconds, 1 + again, penalty)
        overlapping = (matrix(hideable, times, free) for times in (first_run, again))
        return _Matrices(costs, parts, *overlapping)

    def edge_into_copy(self, stored: Side, node: int, copy: CopyNode, operand: Operand) -> Edge:
        """The edge from a producer to a copy. It forbids options of the copy that disagree with the
        stored layout. A kept copy has a negative cost: it gives back the reader's price of
        resharding, for the first computation or the recomputation."""
        allowed = copy.allowed_after(stored.layouts)
        if copy.earlier is None:
            costs, parts, loads = np.where(allowed, 0.0, np.inf), {}, ()
        else:
            target = [copy.options[0].target]
            seconds = operand.trips * operand.seconds_once(stored.layouts, target)
            saved = np.where(copy.is_kept, seconds, 0.0)
            costs = np.where(allowed, -saved, np.inf)
            is_again = copy.reader is Reader.AGAIN
            parts = {"recompute" if is_again else "resharding": costs} if self.with_parts else {}
            hideable = saved * operand.overlapping(stored.layouts, target)
            given_back, none = np.where(allowed, -hideable, 0.0), np.zeros_like(costs)
            loads = operand.overlap(*((none, given_back) if is_again else (given_back, none)))
        return Edge(stored.node, node, costs, parts, tail_class=stored.lines(), loads=loads)

    def edge_from_copy(self, node: int, copy: CopyNode, wanted: Side) -> Edge:
        """The edge from a copy to its reader. It forbids options of the copy that disagree with the
        layout that the reader expects."""
        times = list(dict.fromkeys(residency.recompute_at for residency in wanted.residencies))
        lines = wanted.lines(
            [times.index(residency.recompute_at) for residency in wanted.residencies]
        )
        allowed = copy.allowed_before(wanted.layouts, times)
        return Edge(node, wanted.node, np.where(allowed, 0.0, np.inf), head_class=lines)

    def carried_edge(
        self, kept: Side, yielded: Side, table: ReshardingTable, trips: float, copied: np.ndarray
    ) -> Edge | None:
        """The edge from an argument to the unit whose result replaces it; None if all costs are
        zero.

        - `kept`: the argument's side. `yielded`: the side of the unit.
        - `copied`: by layout of the argument, the extra seconds if collectives move the result;
          empty for none.
        """
        seconds = trips * table.seconds_matrix(yielded.layouts, kept.layouts).T
        if copied.any():
            is_cut = table.is_cut(yielded.layouts, kept.layouts).T
            seconds += np.where(is_cut, 0.0, copied[:, None])
        if not seconds.any():
            return None
        parts = {"resharding": seconds} if self.with_parts else {}
        return Edge(kept.node, yielded.node, seconds, parts, kept.lines(), yielded.lines())


def classes(rows: np.ndarray) -> tuple[list[int], list[int]]:
    """Returns, for each row, the number of its class of equal rows, and for each class the index of
    its first row."""
    index: dict[bytes, int] = {}
    numbers = [index.setdefault(row.tobytes(), len(index)) for row in np.ascontiguousarray(rows)]
    return numbers, [numbers.index(number) for number in range(len(index))]
