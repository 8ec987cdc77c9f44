"""Rows that two kernels of the backward pass reduce, each for itself.

If a softmax is recomputed, two kernels need the sum of its exponentials: the one that writes the
softmax again, and that of its gradient. XLA:GPU reduces rows in the kernel of their readers only if
no other kernel reads the reduction (`Kernel.rows`). Otherwise the sum is a kernel of its own, as in
the first computation (`RowReduction.is_summed_once`). So the gradient's kernel reads the rows
behind a barrier, and reduces them once more (docs/how_it_works/memory.md).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kiwi.emit.execution import Execution


@dataclass(frozen=True)
class ReducedAgain:
    """The reductions that a unit repeats for itself.

    - `rows`: the value that it reads behind a barrier.
    - `units`: the units that reduce the rows, in order.
    """

    rows: int
    units: tuple[int, ...]


def reduced_again(execution: Execution) -> Mapping[int, tuple[ReducedAgain, ...]]:
    """The repeated reductions by unit of the backward pass, for devices that hold all rows that
    they read."""
    by_reader: dict[int, tuple[ReducedAgain, ...]] = {}
    for reader, again in _of_readers(execution):
        by_reader[reader] = (*by_reader.get(reader, ()), again)
    return by_reader


def _of_readers(execution: Execution) -> Iterator[tuple[int, ReducedAgain]]:
    graph, recomputed = execution.units, execution.recomputed
    reductions = execution.kernels.rows
    for index, last in reductions.items():
        if not (last.repeats and {index, last.reader} <= recomputed):
            continue
        unit, rows = graph.units[index], last.rows
        alike = [k for k in recomputed & reductions.keys() if reductions[k].rows == rows]
        own = ReducedAgain(rows, tuple(sorted(k for k in alike if k <= index)))
        for reader in (graph.units[k] for k in graph.readers[unit.outputs[0]]):
            is_later = reader.phase != unit.phase and rows in reader.reads
            if is_later and all(_reads_as_stored(execution, k) for k in (reader.index, *own.units)):
                yield reader.index, own


def _reads_as_stored(execution: Execution, index: int) -> bool:
    """Whether a unit reads all its operands in their stored layouts."""
    pairs = zip(execution.units.units[index].rule.reads, execution.reads[index], strict=True)
    return all(wanted == execution.layouts[value] for (value, _), wanted in pairs)
