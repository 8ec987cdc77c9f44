"""Cost matrices of the problem's edges.

Options that store a value in one layout, or expect it in one, share a line of the matrix (see
`kiwi.solver.Edge`). A line stands for a pair (layout, class of residencies), layout-major; equal
matrices, such as those of repeated layers, are built once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kiwi.hlo.program import Value
from kiwi.memory.residency import Residency, UnitResidency
from kiwi.mesh import DeviceMesh, ReshardingTable, TensorSharding
from kiwi.problem.copies import CopyNode
from kiwi.solver.problem import Edge
from kiwi.xla.rules.base import Rules

_ALWAYS = (Residency(None, 2**31),)


@dataclass(frozen=True, eq=False)
class Side:
    """One end of an edge: the layouts that the node's options store or expect.

    - `layouts`: distinct.
    - `layout_of_strategy`: for each strategy its index in `layouts`.
    - `residencies`: of the node; an argument is always there.
    """

    layouts: tuple[TensorSharding, ...]
    layout_of_strategy: np.ndarray
    residencies: tuple[Residency, ...]

    @classmethod
    def of(cls, layouts: Sequence[TensorSharding], residency: UnitResidency | None) -> "Side":
        """From one layout per strategy."""
        index: dict[TensorSharding, int] = {}
        numbers = np.array([index.setdefault(layout, len(index)) for layout in layouts])
        return cls(tuple(index), numbers, _ALWAYS if residency is None else residency.options)

    def lines(self, class_of_residency: Sequence[int] | None = None) -> np.ndarray:
        """For each option its line, where residencies are lines of their own or classes."""
        classes = np.arange(len(self.residencies))
        if class_of_residency is not None:
            classes = np.asarray(class_of_residency)
        width = int(classes.max()) + 1
        return (self.layout_of_strategy[:, None] * width + classes[None, :]).ravel()


def resharding_table(mesh: DeviceMesh, rules: Rules, value: Value) -> ReshardingTable:
    """Between the layouts of a value, in the bytes that the compiled program moves."""
    itemsize = rules.moved_itemsize(str(value.dtype), value.itemsize)
    return ReshardingTable(mesh, value.shape, itemsize)


class EdgeMatrices:
    """Builds edges; equal matrices once."""

    def __init__(self, *, with_parts: bool) -> None:
        self._with_parts = with_parts
        self._known: dict[object, tuple[np.ndarray, dict[str, np.ndarray]] | None] = {}

    def read_edge(
        self,
        tail: int,
        head: int,
        stored: Side,
        wanted: Side,
        table: ReshardingTable,
        trips: int,
        *,
        is_slice: bool = False,
        is_map: bool = False,
    ) -> Edge | None:
        """The edge from a producer to a reader; None if all its costs are zero.

        A reader reshards its operand `trips` times, and as often again if it is recomputed. A pair
        of residencies is forbidden if the recomputed reader runs while the operand is not live. A
        slice (`is_slice`) needs the stacked operand for as long as the slice has readers. An
        elementwise reader (`is_map`) pays nothing for a part of the device's shard: XLA fuses the
        slice (`tests/emit/test_emission.py`).
        """
        available = _endurance if is_slice else _availability
        here = available(stored.residencies, wanted.residencies)
        again = np.array([float(r.recomputes) for r in wanted.residencies])
        # Residencies that differ to third nodes only share a line.
        tails, first_tails = _classes(here)
        heads, first_heads = _classes(np.column_stack([here.T, again]))
        here, again = here[np.ix_(first_tails, first_heads)], again[first_heads]
        layouts = (table.shape, table.itemsize, trips, stored.layouts, wanted.layouts, is_map)
        key = (*layouts, here.tobytes(), again.tobytes())
        if key not in self._known:
            seconds = trips * read_seconds(table, stored.layouts, wanted.layouts, is_map=is_map)
            self._known[key] = self._read_matrices(stored, wanted, here, again, seconds)
        matrices = self._known[key]
        if matrices is None:
            return None
        return Edge(tail, head, *matrices, stored.lines(tails), wanted.lines(heads))

    def _read_matrices(
        self,
        stored: Side,
        wanted: Side,
        here: np.ndarray,
        again: np.ndarray,
        seconds: np.ndarray,
    ) -> tuple[np.ndarray, dict[str, np.ndarray]] | None:
        """Resharding and that of a recomputed reader together, and the parts if asked for."""
        if not seconds.any() and here.all():
            return None
        penalty = np.where(here, 0.0, np.inf)
        # Axes: stored layout, class of the producer's residency, wanted layout, reader's.
        lines = (len(stored.layouts) * here.shape[0], len(wanted.layouts) * here.shape[1])

        def matrix(times: np.ndarray, penalty: np.ndarray) -> np.ndarray:
            both = seconds[:, None, :, None] * times + penalty[None, :, None, :]
            return both.reshape(lines)

        parts = {}
        if self._with_parts:
            once, free = matrix(np.ones_like(again), penalty), np.zeros_like(penalty)
            parts = {"resharding": once, "recompute": matrix(again, free)}
        return matrix(1 + again, penalty), parts

    def edge_into_copy(
        self,
        tail: int,
        head: int,
        stored: Side,
        copy: CopyNode,
        table: ReshardingTable,
        trips: int,
        *,
        is_map: bool = False,
    ) -> Edge:
        """From a producer to the copy: which options agree with the stored layout.

        A copy that is kept gives back what the reader pays for resharding.
        """
        allowed = copy.allowed_after(stored.layouts)
        lines = stored.lines([0] * len(stored.residencies))
        parts, saved = {}, np.zeros(allowed.shape)
        if copy.earlier is not None:
            target = [copy.options[0].target]
            seconds = trips * read_seconds(table, stored.layouts, target, is_map=is_map)
            saved = np.where(copy.is_kept, seconds, 0.0)
            if self._with_parts:
                parts = {"resharding": np.where(allowed, -saved, np.inf)}
        return Edge(tail, head, np.where(allowed, -saved, np.inf), parts, tail_class=lines)

    def edge_from_copy(self, tail: int, head: int, copy: CopyNode, wanted: Side) -> Edge:
        """From the copy to its reader: which options agree with what the reader expects."""
        times = list(dict.fromkeys(r.recompute_at for r in wanted.residencies))
        lines = wanted.lines([times.index(r.recompute_at) for r in wanted.residencies])
        allowed = copy.allowed_before(wanted.layouts, times)
        return Edge(tail, head, np.where(allowed, 0.0, np.inf), head_class=lines)

    def carried_edge(
        self,
        tail: int,
        head: int,
        kept: Side,
        yielded: Side,
        table: ReshardingTable,
        trips: int,
    ) -> Edge | None:
        """From an argument to the unit whose result replaces it; None if all zero."""
        seconds = trips * table.seconds_matrix(yielded.layouts, kept.layouts).T
        if not seconds.any():
            return None
        parts = {"resharding": seconds} if self._with_parts else {}
        tails, heads = (side.lines([0] * len(side.residencies)) for side in (kept, yielded))
        return Edge(tail, head, seconds, parts, tails, heads)


def read_seconds(
    table: ReshardingTable,
    stored: Sequence[TensorSharding],
    wanted: Sequence[TensorSharding],
    *,
    is_map: bool,
) -> np.ndarray:
    """[stored, wanted] of bringing a value to one reader; see `EdgeMatrices.read_edge`."""
    seconds = table.seconds_matrix(stored, wanted)
    return np.where(table.is_cut(stored, wanted), 0.0, seconds) if is_map else seconds


def _availability(producer: Sequence[Residency], reader: Sequence[Residency]) -> np.ndarray:
    """For each pair of residencies whether a recomputed reader finds the value."""
    rows = [
        [r.recompute_at is None or p.available_at(r.recompute_at) for r in reader] for p in producer
    ]
    return np.array(rows)


def _endurance(producer: Sequence[Residency], reader: Sequence[Residency]) -> np.ndarray:
    """For each pair of residencies whether the producer is kept for as long as the reader."""
    return np.array([[p.end >= r.end for r in reader] for p in producer])


def _classes(rows: np.ndarray) -> tuple[list[int], list[int]]:
    """For each row the number of its class of equal rows, and the first row of each class."""
    index: dict[bytes, int] = {}
    numbers = [index.setdefault(row.tobytes(), len(index)) for row in np.ascontiguousarray(rows)]
    return numbers, [numbers.index(number) for number in range(len(index))]
