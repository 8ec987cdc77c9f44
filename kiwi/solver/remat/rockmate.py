"""Rockmate (Zhao's thesis, chapter 2): rk-checkmate inside blocks, rk-rotor over them.

The graph is linearised into blocks. For each block, rk-checkmate finds schedules under several
pairs of peak and save budgets (section 2.6: evenly spaced); blocks that are identical up to
the numbers of their operators and values are solved once. The option of plain Rotor, to save
everything, is always among the options, so that Rockmate is at least as good as Rotor.
"""

import itertools
import time
from dataclasses import dataclass, replace

from kiwi.solver.remat.bounds import evenly, largest_working_set, order_peak_bytes
from kiwi.solver.remat.chain import (
    Borders,
    Chain,
    Option,
    keep_all_option,
    make_chain,
    make_option,
    make_stage,
    stage_borders,
)
from kiwi.solver.remat.graph import Operator, RematGraph, extract
from kiwi.solver.remat.linearise import Linearised, linearise
from kiwi.solver.remat.result import Finding, Task
from kiwi.solver.remat.rk_checkmate import SaveLimit, rk_checkmate
from kiwi.solver.remat.rotor import solve_chain

PEAK_BUDGETS = 3
SAVE_BUDGETS = 4
LARGEST_BLOCK = 60
"""Most operators of a block that is solved; larger ones keep the option to save all."""
BLOCKS_SHARE = 0.7
"""Share of the time limit for the blocks."""


@dataclass(frozen=True)
class Block:
    """The graph of one block: forward operators, a loss in place of the rest, backward operators.

    `operators[k]` is the original of operator k, -1 for the loss. Values handed on by the block
    before are inputs of size zero.
    """

    graph: RematGraph
    operators: tuple[int, ...]
    loss: int
    gradient_bytes: int


def rockmate(task: Task) -> Finding:
    """The best persistent schedule over the options of all blocks.

    Raises `kiwi.errors.InvalidProblemError` if no backward operator is known.
    """
    groups = linearise(task.graph)
    borders = stage_borders(task.graph, groups)
    blocks = [make_block(task.graph, groups, borders, s) for s in range(len(groups.forward))]
    keys = [block.graph for block in blocks]
    solved: dict[RematGraph, tuple[tuple[int, ...], ...]] = {}
    ends = time.monotonic() + BLOCKS_SHARE * task.remaining_seconds()
    left = len(set(keys))
    for key, block in zip(keys, blocks, strict=True):
        if key not in solved:
            seconds = max(0.0, ends - time.monotonic()) / left
            solved[key] = _block_schedules(replace(task, graph=block.graph), block, seconds)
            left -= 1
    stages = tuple(
        make_stage(
            task.graph,
            groups,
            borders,
            s,
            _options(task.graph, groups, borders, s, block, solved[keys[s]]),
        )
        for s, block in enumerate(blocks)
    )
    plain: Chain = make_chain(task.graph, groups)
    finding = solve_chain(task, replace(plain, stages=stages))
    return replace(finding, deterministic=finding.deterministic and task.remaining_seconds() > 0)


def make_block(graph: RematGraph, groups: Linearised, borders: Borders, index: int) -> Block:
    """The graph of stage `index`; its operators and values are numbered by first occurrence."""
    values = borders.stages[index]
    forward, backward = groups.forward[index], groups.backward[index]
    output, gradient = sorted(values.output), sorted(values.gradient_in)
    loss = Operator("loss", 0.0, tuple(output), tuple(gradient))
    operators = [graph.operators[k] for k in forward]
    operators += [loss, *(graph.operators[k] for k in backward)]
    written = {v for v, writer in enumerate(graph.producer) if writer >= 0}
    counted = written - values.before - borders.shared
    return Block(
        extract(graph, operators, counted, values.gradient_out).graph,
        (*forward, -1, *backward),
        len(forward),
        graph.bytes_of(gradient),
    )


def _block_schedules(task: Task, block: Block, seconds: float) -> tuple[tuple[int, ...], ...]:
    """Schedules of the block for all pairs of budgets, as far as the time goes."""
    if len(block.operators) > LARGEST_BLOCK or len(block.operators) < 4:
        return ()
    deadline = min(task.deadline, time.monotonic() + seconds)
    low, high = largest_working_set(task.graph).size_bytes, order_peak_bytes(task.graph)
    most_saved = _saved_by_keeping_all(block)
    budgets = itertools.product(
        evenly(low, high, PEAK_BUDGETS), evenly(0, most_saved, SAVE_BUDGETS)
    )
    found: dict[tuple[int, ...], None] = {}
    for peak_bytes, save_bytes in budgets:
        if time.monotonic() >= deadline:
            break
        limit = SaveLimit(block.loss, save_bytes + block.gradient_bytes)
        finding = rk_checkmate(replace(task, budget_bytes=peak_bytes, deadline=deadline), limit)
        if finding.schedule is not None:
            found[finding.schedule.steps] = None
    return tuple(found)


def _saved_by_keeping_all(block: Block) -> int:
    graph = block.graph
    return graph.bytes_of(
        value
        for value, writer in enumerate(graph.producer)
        if 0 <= writer < block.loss and any(k > block.loss for k in graph.readers[value])
    )


def _options(
    graph: RematGraph,
    groups: Linearised,
    borders: Borders,
    index: int,
    block: Block,
    schedules: tuple[tuple[int, ...], ...],
) -> tuple[Option, ...]:
    options = [keep_all_option(graph, groups, borders, index)]
    for steps in schedules:
        at = steps.index(block.loss)
        forward = tuple(block.operators[k] for k in steps[:at])
        backward = tuple(block.operators[k] for k in steps[at + 1 :])
        options.append(make_option(graph, borders, index, forward, backward))
    return tuple(dict.fromkeys(options))
