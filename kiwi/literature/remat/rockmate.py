"""Rockmate (Zhao's thesis, chapter 2): rk-checkmate inside blocks, rk-rotor over them.

The graph is linearised into blocks. For each block, rk-checkmate finds schedules under several
pairs of peak and save budgets (section 2.6: evenly spaced). Blocks that are identical up to the
numbers of their operators and values are solved once. The option of plain Rotor, to save
everything, is always among the options, so that Rockmate is at least as good as Rotor.
"""

import itertools
import time
from dataclasses import dataclass, replace

from kiwi.literature.remat.chain import Borders, Option, Steps, stage_borders
from kiwi.literature.remat.checkmate import rk_checkmate
from kiwi.literature.remat.graph import Operator, RematGraph, extract
from kiwi.literature.remat.result import Finding, Task
from kiwi.literature.remat.rotor import solve_chain
from kiwi.literature.remat.simulate import evenly, largest_working_set, order_peak_bytes

PEAK_BUDGETS, SAVE_BUDGETS = 3, 4
LARGEST_BLOCK = 60
"""The largest number of operators of a block that is solved. A larger block saves everything."""
BLOCKS_SHARE = 0.7
"""The share of the time limit for the blocks."""


@dataclass(frozen=True)
class BlockBudgets:
    """The budgets for which blocks are solved.

    - `peaks`, `saves`: the numbers of peak and save budgets of each block (M_peak and M_save of
      section 2.6). Each pair is an integer program.
    - `largest_block`: the largest number of operators of a block that is solved. A larger block
      saves everything.
    """

    peaks: int = PEAK_BUDGETS
    saves: int = SAVE_BUDGETS
    largest_block: int = LARGEST_BLOCK


def rockmate(task: Task, budgets: BlockBudgets | None = None) -> Finding:
    """Returns the best persistent schedule over the options of all blocks.

    Raises `kiwi.errors.InvalidProblemError` if no backward operator is known.
    """
    budgets = budgets or BlockBudgets()
    borders = stage_borders(task.graph)
    blocks = [block_graph(borders, index) for index in borders.stages]
    solved: dict[RematGraph, tuple[Steps, ...]] = {}
    by_clock = False
    ends = time.monotonic() + BLOCKS_SHARE * task.remaining_seconds()
    left = len(set(blocks))
    for index, block in enumerate(blocks):
        if block not in solved:
            seconds = max(0.0, ends - time.monotonic()) / (left - len(solved))
            solved[block], ended = _block_schedules(task, borders, index, block, seconds, budgets)
            by_clock = by_clock or ended
    options = [_options(borders, index, solved[block]) for index, block in enumerate(blocks)]
    finding = solve_chain(task, borders.chain(options))
    return replace(finding, deterministic=finding.deterministic and not by_clock)


def block_graph(borders: Borders, index: int) -> RematGraph:
    """Returns a stage's forward operators, a loss in place of the rest, and its backward operators.

    Operators and values are numbered by first occurrence. The output of the stage before has size
    zero.
    """
    graph = borders.graph
    forward, backward = borders.groups.forward[index], borders.groups.backward[index]
    output, gradient = (
        sorted(values_at[index + 1]) for values_at in (borders.handed_on, borders.gradients)
    )
    loss = Operator("loss", 0.0, tuple(output), tuple(gradient))
    operators = [graph.operators[k] for k in forward]
    operators += [loss, *(graph.operators[k] for k in backward)]
    written = {value for value, writer in enumerate(graph.producer) if writer >= 0}
    counted = written - borders.handed_on[index] - borders.shared
    return extract(graph, operators, counted, borders.gradients[index])[0]


def _block_schedules(
    task: Task,
    borders: Borders,
    index: int,
    block: RematGraph,
    seconds: float,
    budgets: BlockBudgets,
) -> tuple[tuple[Steps, ...], bool]:
    """Returns distinct schedules of the block for as many pairs of budgets as time allows for.

    The second result says whether the clock ended a search.
    """
    if len(block.operators) > budgets.largest_block or len(block.operators) < 4:
        return (), False
    loss, gradients = len(borders.groups.forward[index]), borders.gradients[index + 1]
    deadline = min(task.deadline, time.monotonic() + seconds)
    low, high = largest_working_set(block).size_bytes, order_peak_bytes(block)
    most_saved = block.bytes_of(
        value
        for value, writer in enumerate(block.producer)
        if 0 <= writer < loss and any(k > loss for k in block.readers[value])
    )
    peaks = evenly(low, high, budgets.peaks)
    saved = evenly(0, most_saved, budgets.saves)
    schedules: dict[Steps, None] = {}
    by_clock = False
    for peak_bytes, save_bytes in itertools.product(peaks, saved):
        if time.monotonic() >= deadline:
            by_clock = True
            break
        block_task = replace(task, graph=block, budget_bytes=peak_bytes, deadline=deadline)
        finding = rk_checkmate(block_task, loss, save_bytes + borders.graph.bytes_of(gradients))
        by_clock = by_clock or not finding.deterministic
        if finding.schedule is not None:
            schedules[finding.schedule.steps] = None
    return tuple(schedules), by_clock


def _options(borders: Borders, index: int, schedules: tuple[Steps, ...]) -> tuple[Option, ...]:
    forward, backward = borders.groups.forward[index], borders.groups.backward[index]
    loss, numbers, options = len(forward), (*forward, -1, *backward), [borders.keep_all(index)]
    for steps in schedules:
        at, original = steps.index(loss), [numbers[k] for k in steps]
        options.append(borders.option(index, tuple(original[:at]), tuple(original[at + 1 :])))
    return tuple(dict.fromkeys(options))
