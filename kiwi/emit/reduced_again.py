"""Row reductions that two kernels of the backward pass compute, each for itself.

If a softmax is recomputed, two kernels need the sum of its exponentials: the kernel that computes
the softmax again, and the kernel of its gradient. XLA:GPU fuses a row reduction with its reader
only if no other kernel reads the reduction (`Kernel.rows`). Otherwise the sum is a kernel of its
own, as in the first computation (`RowReduction.is_summed_once`). So the gradient's kernel reads the
rows behind a barrier, and reduces them once more (docs/how_it_works/memory.md).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kiwi.emit.execution import Execution


@dataclass(frozen=True)
class ReducedAgain:
    """The reductions that a unit repeats for itself.

    - `rows`: the value that the unit reads behind a barrier and reduces.
    - `units`: the units whose reductions of the rows it repeats, in order.
    """

    rows: int
    units: tuple[int, ...]


def reduced_again(execution: Execution) -> Mapping[int, tuple[ReducedAgain, ...]]:
    """Returns the reductions that each unit of the backward pass repeats, by unit.

    Reductions are repeated only if the units involved read all operands in their stored layouts.
    """
    by_reader: dict[int, tuple[ReducedAgain, ...]] = {}
    for reader, again in _of_readers(execution):
        by_reader[reader] = (*by_reader.get(reader, ()), again)
    return by_reader


def _of_readers(execution: Execution) -> Iterator[tuple[int, ReducedAgain]]:
    """Yields units of the backward pass, each with reductions that it repeats."""
    graph, recomputed = execution.units, execution.recomputed
    reductions = execution.kernels.rows
    for index, reduction in reductions.items():
        if not (reduction.repeats and {index, reduction.reader} <= recomputed):
            continue
        unit, rows = graph.units[index], reduction.rows
        same_rows = [k for k in recomputed & reductions.keys() if reductions[k].rows == rows]
        again = ReducedAgain(rows, tuple(sorted(k for k in same_rows if k <= index)))
        for reader in (graph.units[k] for k in graph.readers[unit.outputs[0]]):
            is_later = reader.phase != unit.phase and rows in reader.reads
            if is_later and all(
                _reads_as_stored(execution, k) for k in (reader.index, *again.units)
            ):
                yield reader.index, again


def _reads_as_stored(execution: Execution, index: int) -> bool:
    """Whether a unit reads all its operands in their stored layouts."""
    pairs = zip(execution.units.units[index].rule.reads, execution.reads[index], strict=True)
    return all(wanted == execution.layouts[value] for (value, _), wanted in pairs)
