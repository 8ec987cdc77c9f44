"""Rotor and rk-rotor: dynamic programs over chains, optimal among persistent schedules.

Rotor is by Beaumont et al.; text in Zhao's thesis, section 2.1.2 (equations 2.1, 2.2). With several
options per stage it is rk-rotor, section 2.5.3 (equations 2.20 to 2.22). With communication it is
MAP's, theorem 5.1: collectives are operators of the graph like others, so that their time and
memory are in the options. A schedule is persistent if every kept value of a stage stays until the
stage's backward part.

`least[s, t, m]` is the least time to run stages s … t forward and backward with m units of memory.
The input of s and the gradient behind t are given and not counted. Either stage s runs once, with
option o:

    seconds(s, o) + least[s + 1, t, m - saved(s, o)],

or its output is not saved, and the next kept value is the input of some stage i:

    discard seconds of s … i - 1 + least[i, t, m - output(i - 1)] + least[s, i - 1, m].

Both cases need memory for the parts that run directly, and for the gradients that are live behind
t.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from kiwi.literature.remat.chain import Chain, make_chain
from kiwi.literature.remat.result import Finding, Task
from kiwi.solver.schedule import Schedule

MOST_UNITS = 500
"""The largest number of memory units of the dynamic program's table. Used memory is rounded up to
whole units."""
MOST_CELLS = 20_000_000
"""The largest number of cells of a table, about. A longer chain has fewer, larger units."""

Units = npt.NDArray[np.int64]


class ChainTables(NamedTuple):
    """A chain in memory units. The options of stage s are `option_start[s]:option_start[s + 1]`."""

    option_start: Units
    option_seconds: npt.NDArray[np.float64]
    saved: Units
    forward_peak: Units
    backward_peak: Units
    discard_seconds: npt.NDArray[np.float64]
    discard_peak: Units
    output: Units
    held: Units


def rotor(task: Task, most_units: int = MOST_UNITS) -> Finding:
    """Returns the best persistent schedule in which each stage saves all or nothing.

    `most_units` is the largest number of memory units of the table. Raises
    `kiwi.errors.InvalidProblemError` if no backward operator is known.
    """
    return solve_chain(task, make_chain(task.graph), most_units)


def solve_chain(task: Task, chain: Chain, most_units: int = MOST_UNITS) -> Finding:
    """Returns the best persistent schedule of `chain` (rk-rotor).

    If no schedule fits the budget, returns a schedule of least peak.
    """
    budget = task.budget_bytes - chain.resident_bytes
    table = RotorTable(chain, unit_bytes_of(chain, budget, most_units), max(0, budget))
    if budget >= 0 and np.isfinite(table.least[0, -1, -1]):
        return Finding(table.schedule(table.least.shape[2] - 1), iterations=table.least.size)
    saved = [max(option.saved_bytes for option in stage.options) for stage in chain.stages]
    unit = unit_bytes_of(chain, sum(saved), most_units)
    feasible = RotorTable(chain, unit, _units_to_save(chain, saved, unit) * unit)
    return Finding(
        feasible.schedule(int(np.flatnonzero(np.isfinite(feasible.least[0, -1]))[0])),
        # Rounding to units may hide a schedule: this is a proof only if a unit is a byte.
        family_is_infeasible=budget < 0 or table.unit_bytes == 1,
        iterations=table.least.size + feasible.least.size,
    )


def unit_bytes_of(chain: Chain, budget_bytes: int, most_units: int) -> int:
    """Returns the size of a memory unit, in bytes, in a table for `budget_bytes`.

    The table has at most `most_units` units, and fewer if the chain is long (`MOST_CELLS`).
    """
    most = max(1, min(most_units, MOST_CELLS // len(chain.stages) ** 2))
    return max(1, -(-budget_bytes // most))


def _units_to_save(chain: Chain, saved_bytes: list[int], unit_bytes: int) -> int:
    """Returns the units of memory that suffice to save `saved_bytes[s]` of each stage s.

    These are the units of all saved bytes, of the held gradients, and of the largest part that runs
    directly.
    """
    options = [option for stage in chain.stages for option in stage.options]
    peak_bytes = max(
        max(option.forward_peak_bytes, option.backward_peak_bytes) for option in options
    )
    held_bytes = max(stage.held_gradient_bytes for stage in chain.stages)
    return sum(
        -(-size_bytes // unit_bytes) for size_bytes in (*saved_bytes, held_bytes, peak_bytes)
    )


class RotorTable:
    """The arrays `least` and `choice` (`fill_table`) of a chain, for all memory up to a budget."""

    def __init__(self, chain: Chain, unit_bytes: int, budget_bytes: int) -> None:
        self.chain, self.unit_bytes = chain, unit_bytes
        self.tables = _tables(chain, unit_bytes)
        units = budget_bytes // unit_bytes
        self.least, self.choice = fill_table(self.tables, len(chain.stages), units)

    def schedule(self, memory: int) -> Schedule:
        """Returns the optimal schedule for `memory` units."""
        steps = self.steps(0, len(self.chain.stages) - 1, memory)
        return Schedule((*self.chain.prologue, *steps))

    def steps(self, first: int, last: int, memory: int) -> list[int]:
        """Returns the operators that run the stages `first` to `last` forward and backward.

        A stack stands for recursion, because chains are long. It holds cells that are still to be
        run, and operators to append after them.
        """
        stages, tables, steps = self.chain.stages, self.tables, []
        pending: list[tuple[int, int, int] | list[int]] = [(first, last, memory)]
        while pending:
            top = pending.pop()
            if isinstance(top, list):
                steps += top
                continue
            s, t, m = top
            chosen = int(self.choice[s, t, m])
            if chosen < 0:
                option = stages[s].options[-1 - chosen - int(tables.option_start[s])]
                steps += option.forward
                pending.append(list(option.backward))
                if t > s:
                    pending.append((s + 1, t, m - int(tables.saved[-1 - chosen])))
                continue
            for stage in stages[s:chosen]:
                steps += stage.discard
            pending.append((s, chosen - 1, m))
            pending.append((chosen, t, m - int(tables.output[chosen - 1])))
        return steps


def _tables(chain: Chain, unit_bytes: int) -> ChainTables:
    def units(amounts: list[int]) -> Units:
        return np.array([-(-amount // unit_bytes) for amount in amounts], np.int64)

    options = [option for stage in chain.stages for option in stage.options]
    starts = np.cumsum([0] + [len(stage.options) for stage in chain.stages])
    return ChainTables(
        starts.astype(np.int64),
        np.array([option.seconds for option in options]),
        units([option.saved_bytes for option in options]),
        units([option.forward_peak_bytes for option in options]),
        units([option.backward_peak_bytes for option in options]),
        np.array([stage.discard_seconds for stage in chain.stages]),
        units([stage.discard_peak_bytes for stage in chain.stages]),
        units([stage.output_bytes for stage in chain.stages]),
        units([stage.held_gradient_bytes for stage in chain.stages]),
    )


@njit(cache=True, nogil=True)
def fill_table(tables, count, memory):
    """Returns `least` and `choice`, both indexed by [s, t, m].

    `choice` is -1 - option if stage s runs once with that option. Otherwise the output of stage s
    is not saved, and `choice` is the stage i whose input is the next kept value.
    """
    least = np.full((count, count, memory + 1), np.inf)
    choice = np.zeros((count, count, memory + 1), np.int32)
    for length in range(count):
        for s in range(count - length):
            _fill_options(tables, least, choice, s, s + length)
            _fill_splits(tables, least, choice, s, s + length)
    return least, choice


@njit(cache=True, nogil=True)
def _fill_options(tables, least, choice, s, t):
    memory = least.shape[2] - 1
    for option in range(tables.option_start[s], tables.option_start[s + 1]):
        needed = max(
            tables.held[t] + tables.forward_peak[option],
            tables.backward_peak[option],
            tables.saved[option],
        )
        for m in range(needed, memory + 1):
            seconds = tables.option_seconds[option]
            if t > s:
                seconds += least[s + 1, t, m - tables.saved[option]]
            if seconds < least[s, t, m]:
                least[s, t, m] = seconds
                choice[s, t, m] = -1 - option


@njit(cache=True, nogil=True)
def _fill_splits(tables, least, choice, s, t):
    memory = least.shape[2] - 1
    needed = tables.held[t] + tables.discard_peak[s]
    discarded = 0.0
    for i in range(s + 1, t + 1):
        discarded += tables.discard_seconds[i - 1]
        if i - 1 > s:
            peak = tables.output[i - 2] + tables.discard_peak[i - 1]
            needed = max(needed, tables.held[t] + peak)
        kept = tables.output[i - 1]
        for m in range(max(needed, kept), memory + 1):
            seconds = discarded + least[i, t, m - kept] + least[s, i - 1, m]
            if seconds < least[s, t, m]:
                least[s, t, m] = seconds
                choice[s, t, m] = i
