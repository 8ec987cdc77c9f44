"""Cost matrices of the problem's edges.

Options that store or expect a value in the same layout share a line of the matrix (see
`kiwi.solver.Edge`). A line stands for a pair (layout, class of residencies), layout-major. Equal
matrices, such as those of repeated layers, are built once.
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

    - `node`: its number in the problem. `layouts`: its distinct layouts.
    - `layout_of_strategy`: for each strategy the index in `layouts`.
    - `residencies`: the node's residencies; an argument is always live.
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
        """From one layout per strategy."""
        index: dict[TensorSharding, int] = {}
        numbers = np.array([index.setdefault(layout, len(index)) for layout in layouts])
        return cls(node, tuple(index), numbers, residencies)

    def lines(self, class_of_residency: Sequence[int] | None = None) -> np.ndarray:
        """The line of each option. There is one line for each layout and class of residencies; by
        default there is one class."""
        classes = np.asarray(class_of_residency or [0] * len(self.residencies))
        width = int(classes.max()) + 1
        return (self.layout_of_strategy[:, None] * width + classes[None, :]).ravel()


def resharding_table(
    mesh: DeviceMesh, facts: TargetFacts, value: Value, *, least_share: float = 1.0
) -> ReshardingTable:
    """Resharding between the layouts of a value, in the bytes that the compiled program moves.

    A unit's operand is moved as `Kernel.moved` says. `least_share`: as in `ReshardingTable`.
    """
    return ReshardingTable(mesh, value.shape, facts.moved_itemsize(value), least_share)


@dataclass(frozen=True)
class OverlappingMoves:
    """The moves of an operand that overlap with computation: gathers of `dims` and, with `others`,
    all moves that are no gathers."""

    dims: frozenset[int]
    others: bool

    def has(self, stored: TensorSharding, wanted: TensorSharding) -> bool:
        """Whether the move between two layouts overlaps."""
        if not refines(stored, wanted):
            return self.others
        pairs = enumerate(zip(stored.dims, wanted.dims, strict=True))
        return all(dim in self.dims for dim, (before, after) in pairs if before != after)


@dataclass(frozen=True, eq=False)
class Operand:
    """A value as a unit reads it.

    - `table`: resharding between its layouts. `trips`: how often it is resharded in a step.
    - `is_map`: the reader is elementwise, and pays nothing for a part of the device's shard: XLA
      fuses the slice.
    - `is_slice`: the reader is a slice, which needs the stacked operand as long as the slice has
      readers.
    - `overlap`: the loads of resharding it, from the seconds of doing so once and again.
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
        """[stored, wanted]: seconds of resharding it once."""
        seconds = self.table.seconds_matrix(stored, wanted)
        return np.where(self.table.is_cut(stored, wanted), 0.0, seconds) if self.is_map else seconds

    def overlapping(
        self, stored: Sequence[TensorSharding], wanted: Sequence[TensorSharding]
    ) -> np.ndarray:
        """[stored, wanted]: whether resharding it may overlap."""
        if self.moves is None:
            return np.ones((len(stored), len(wanted)))
        return np.array([[self.moves.has(s, w) for w in wanted] for s in stored], float)

    def is_there(self, producer: Residency, reader: Residency) -> bool:
        """Whether the value is live when the reader runs again, or while a slice is."""
        if self.is_slice:
            return producer.end >= reader.end
        return reader.recompute_at is None or producer.available_at(reader.recompute_at)


@dataclass(frozen=True, eq=False)
class _Matrices:
    """The parts that edges of equal operands share. `once` and `again` are the seconds of
    resharding that may overlap."""

    costs: np.ndarray
    parts: dict[str, np.ndarray]
    once: np.ndarray
    again: np.ndarray


class EdgeMatrices:
    """Builds edges, equal matrices once. `with_parts`: whether costs are split into parts."""

    def __init__(self, *, with_parts: bool) -> None:
        self.with_parts = with_parts
        self._known: dict[object, _Matrices | None] = {}

    def read_edge(self, stored: Side, wanted: Side, operand: Operand) -> Edge | None:
        """The edge from a producer to a reader; None if all its costs are zero.

        A recomputed reader reshards its operand once more. A pair of residencies is forbidden if
        the recomputed reader runs while the operand is not live.
        """
        readers = wanted.residencies
        here = np.array([[operand.is_there(p, r) for r in readers] for p in stored.residencies])
        again = np.array([float(r.recomputes) for r in wanted.residencies])
        # Residencies that differ to third nodes only share a line.
        tails, first_tails = classes(here)
        heads, first_heads = classes(np.column_stack([here.T, again]))
        here, again = here[np.ix_(first_tails, first_heads)], again[first_heads]
        table, layouts = operand.table, (stored.layouts, wanted.layouts)
        tensor = (table.shape, table.itemsize, table.least_share, operand.trips, operand.is_map)
        key = (*tensor, operand.moves, *layouts, here.tobytes(), again.tobytes())
        if key not in self._known:
            seconds = operand.trips * operand.seconds_once(*layouts)
            hideable = seconds * operand.overlapping(*layouts)
            self._known[key] = self._read_matrices(here, again, seconds, hideable)
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
        """The resharding of a reader's first computation and of its recomputation together, and the
        parts if asked for. `hideable` is the part of `seconds` that may overlap."""
        if not seconds.any() and here.all():
            return None
        penalty = np.where(here, 0.0, np.inf)
        # Axes: stored layout, class of the producer's residency, wanted layout, reader's.
        lines = tuple(np.multiply(seconds.shape, here.shape))

        def matrix(seconds: np.ndarray, times: np.ndarray, penalty: np.ndarray) -> np.ndarray:
            both = seconds[:, None, :, None] * times + penalty[None, :, None, :]
            return both.reshape(lines)

        free, one, parts = np.zeros_like(penalty), np.ones_like(again), {}
        if self.with_parts:
            parts["resharding"] = matrix(seconds, one, penalty)
            parts["recompute"] = matrix(seconds, again, free)
        costs = matrix(seconds, 1 + again, penalty)
        overlapping = (matrix(hideable, times, free) for times in (one, again))
        return _Matrices(costs, parts, *overlapping)

    def edge_into_copy(self, stored: Side, node: int, copy: CopyNode, operand: Operand) -> Edge:
        """The edge from a producer to the copy: which options agree with the stored layout. A kept
        copy gives back the reader's price of resharding, for its first computation or its
        recomputation."""
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
            given, none = np.where(allowed, -hideable, 0.0), np.zeros_like(costs)
            loads = operand.overlap(*((none, given) if is_again else (given, none)))
        return Edge(stored.node, node, costs, parts, tail_class=stored.lines(), loads=loads)

    def edge_from_copy(self, node: int, copy: CopyNode, wanted: Side) -> Edge:
        """From the copy to its reader: which options agree with what the reader expects."""
        times = list(dict.fromkeys(r.recompute_at for r in wanted.residencies))
        lines = wanted.lines([times.index(r.recompute_at) for r in wanted.residencies])
        allowed = copy.allowed_before(wanted.layouts, times)
        return Edge(node, wanted.node, np.where(allowed, 0.0, np.inf), head_class=lines)

    def carried_edge(
        self, kept: Side, yielded: Side, table: ReshardingTable, trips: float, copied: np.ndarray
    ) -> Edge | None:
        """The edge from an argument to the unit whose result replaces it; None if all costs are
        zero. `copied`: by layout of the argument, the extra seconds of a result that collectives
        move; empty for none."""
        seconds = trips * table.seconds_matrix(yielded.layouts, kept.layouts).T
        if copied.any():
            is_cut = table.is_cut(yielded.layouts, kept.layouts).T
            seconds += np.where(is_cut, 0.0, copied[:, None])
        if not seconds.any():
            return None
        parts = {"resharding": seconds} if self.with_parts else {}
        return Edge(kept.node, yielded.node, seconds, parts, kept.lines(), yielded.lines())


def classes(rows: np.ndarray) -> tuple[list[int], list[int]]:
    """For each row the number of its class of equal rows, and the first row of each class."""
    index: dict[bytes, int] = {}
    numbers = [index.setdefault(row.tobytes(), len(index)) for row in np.ascontiguousarray(rows)]
    return numbers, [numbers.index(number) for number in range(len(index))]
