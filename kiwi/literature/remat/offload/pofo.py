"""POFO: recomputation and offloading of a chain together, by dynamic programming.

Beaumont, Eyraud-Dubois and Shilova, NeurIPS 2021. Their assumptions hold here, too. Copies to the
host are made while the chain runs forward for the first time, and copies back while it runs
backward. A value that is being copied holds memory only for the part that is on the device.

The first forward run divides the chain into blocks. A block is a stage that saves all, or a run of
stages that save only the input of the next block. `rotor`'s program later runs such stages again in
the memory that is left. The values that a block saves stay, or go to the host. The state in front
of a stage is

- `kept`: bytes that stay on the device,
- `behind`: bytes on their way to the host that are still on the device,
- `ahead`: bytes of earlier blocks that are back before they are used, while the rest of the chain
  runs backward. Time is reversed in the backward run, so that both `behind` and `ahead` shrink
  while stages run,

with the time of the stages before. The device waits if a block would not fit otherwise. States are
not rounded. In front of a stage only the states that no other state beats in all numbers are kept,
at most `MOST_LABELS`. The source rounds memory instead.

Transfers of whole values are then fitted to the steps (`pacing`). If whole values do not fit where
parts did, the program is solved again for less memory. `rotor`'s own schedule is the answer if
nothing better is found, or if the host has too little memory.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from kiwi.literature.remat.chain import Chain, stage_borders
from kiwi.literature.remat.graph import RematGraph
from kiwi.literature.remat.offload.host import Host, OffloadSchedule
from kiwi.literature.remat.offload.pacing import absence_over, paced
from kiwi.literature.remat.offload.simulate import OffloadFinding, best_schedule, simulate
from kiwi.literature.remat.result import Task
from kiwi.literature.remat.rotor import MOST_UNITS, RotorTable, solve_chain, unit_bytes_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
MOST_LABELS, MOST_WORK = 2000, 2_000_000_000
"""The largest number of states in front of a stage, and a bound on the work. A long chain has fewer
states."""
ROUNDS, LEAST_SHARE = 12, 16
"""The largest number of programs that are solved. Each lowers the memory by at most 1 /
`LEAST_SHARE`."""
BEHIND, AHEAD, SECONDS = 1, 2, 3
"""The columns of labels. Column 0 holds the bytes that stay on the device."""


class Block(NamedTuple):
    """The stages `first` to `last`, run forward together.

    - `saves_all`: the block is one stage, which runs forward once.
    - `sent`: the values that the block saves go to the host.
    - `units`: the units of memory in which a block that does not save all is run again.
    """

    first: int
    last: int
    saves_all: bool
    sent: bool = False
    units: int = 0


@dataclass(frozen=True)
class Blocks:
    """The blocks of a chain in order, and their time, in which the device's waits for copies are
    included."""

    blocks: tuple[Block, ...]
    seconds: float


def pofo(task: Task, host: Host, most_units: int = MOST_UNITS) -> OffloadFinding:
    """Returns a schedule of blocks within the budget.

    `most_units` is the largest number of memory units of the table for stages that run again.
    Raises `kiwi.errors.InvalidProblemError` if no backward operator is known.
    """
    borders = stage_borders(task.graph)
    chain = borders.chain([(borders.keep_all(index),) for index in borders.stages])
    plain = solve_chain(task, chain, most_units)
    schedules = [OffloadSchedule(plain.schedule.steps)] if plain.schedule is not None else []
    budget_bytes = task.budget_bytes - chain.resident_bytes
    for number in range(ROUNDS):
        if budget_bytes <= 0 or (number and task.remaining_seconds() <= 0):
            break
        table = RotorTable(chain, unit_bytes_of(chain, budget_bytes, most_units), budget_bytes)
        blocks = best_blocks(table, budget_bytes, task.graph, host)
        if blocks is None:
            break
        schedules.append(_schedule(task, host, table, blocks, borders.shared))
        peak_bytes = simulate(task.graph, host, schedules[-1]).peak_bytes
        if peak_bytes <= task.budget_bytes:
            break
        budget_bytes -= max(1, min(peak_bytes - task.budget_bytes, budget_bytes // LEAST_SHARE))
    return OffloadFinding(best_schedule(task, host, schedules))


def best_blocks(
    table: RotorTable, budget_bytes: int, graph: RematGraph, host: Host
) -> Blocks | None:
    """Returns the blocks of least time, None if none fit. Parts of a value may be on both sides."""
    return _Program(table, budget_bytes, graph, host).solve()


@dataclass(frozen=True)
class _Run:
    """A block with the time and memory of its forward run.

    - `saved_bytes`: the values that the block saves, of which the next block reads `output_bytes`.
    - `backward_seconds`, `backward_peak_bytes`: only for a stage that saves all. A block that runs
      again has a table instead.
    """

    block: Block
    forward_seconds: float
    forward_peak_bytes: int
    saved_bytes: int
    output_bytes: int
    backward_seconds: float = 0.0
    backward_peak_bytes: int = 0


class _Arrival(NamedTuple):
    """The labels behind a block.

    - `input_sent`: whether the block's input was sent to the host.
    - `parents`: for each label, the row of the label in front of the block.
    - `units`: for each label, the units of memory for running the block again.
    """

    block: Block
    input_sent: bool
    labels: Floats
    parents: Ints
    units: Ints


class _Program:
    """Labels in front of each stage, by whether the input of the stage was sent to the host."""

    def __init__(self, table: RotorTable, budget_bytes: int, graph: RematGraph, host: Host) -> None:
        self._table, self._budget, self._graph, self._host = table, budget_bytes, graph, host
        self._count = len(table.chain.stages)
        self._most = max(50, min(MOST_LABELS, int((MOST_WORK / self._count**2) ** 0.5)))
        self._labels: dict[tuple[int, bool], Floats] = {(0, False): np.zeros((1, 4))}
        self._arrived: dict[tuple[int, bool], list[_Arrival]] = {}
        self._from: dict[tuple[int, bool], list[tuple[_Arrival, int]]] = {}

    def solve(self) -> Blocks | None:
        """Returns the blocks of least time, None if none fit."""
        for stage in range(self._count):
            runs = list(_runs(self._table.chain, self._graph, stage))
            for sent in (False, True):
                self._settle(stage, sent)
                for run in runs if (stage, sent) in self._labels else ():
                    self._extend(stage, sent, run)
        self._settle(self._count, False)
        labels = self._labels.get((self._count, False))
        return None if labels is None else self._traced(labels)

    def _settle(self, stage: int, sent: bool) -> None:
        """Keeps the labels in front of a stage that no other label beats."""
        arrived = self._arrived.pop((stage, sent), None)
        if arrived is None:
            return
        labels = np.concatenate([arrival.labels for arrival in arrived])
        order = np.lexsort(labels.T)
        kept = order[_unbeaten(labels[order], self._most)]
        owners = [(arrival, row) for arrival in arrived for row in range(len(arrival.labels))]
        self._labels[stage, sent] = labels[kept]
        self._from[stage, sent] = [owners[k] for k in kept.tolist()]

    def _extend(self, stage: int, sent: bool, run: _Run) -> None:
        """Extends all labels in front of a stage by the block `run`."""
        host, chain, block = self._host, self._table.chain, run.block
        kept, behind, ahead, seconds = self._labels[stage, sent].T
        room = self._budget - kept - run.forward_peak_bytes
        waiting = np.maximum(0.0, behind - room)
        seconds = np.where(room >= 0, seconds + host.outward_seconds(1) * waiting, np.inf)
        sending = run.forward_seconds * host.outward_bytes_per_second
        behind = np.maximum(0.0, behind - waiting - sending)
        input_bytes = chain.stages[stage - 1].output_bytes if sent else 0
        room, units, backward = self._backward(run, self._budget - kept - input_bytes, ahead)
        waiting = np.maximum(0.0, ahead - room)
        seconds = np.where(room >= 0, seconds + host.inward_seconds(1) * waiting, np.inf)
        seconds = seconds + run.forward_seconds + backward
        with np.errstate(invalid="ignore"):
            fetching = backward * host.inward_bytes_per_second
        ahead = np.maximum(0.0, ahead - waiting - fetching) + input_bytes
        parents = np.flatnonzero(np.isfinite(seconds))
        if not len(parents):
            return
        saved, rest = run.saved_bytes, run.saved_bytes - run.output_bytes
        here = np.column_stack((kept + saved, behind, ahead, seconds))[parents]
        away = np.column_stack((kept, behind + saved, ahead + rest, seconds))[parents]
        self._arrive(_Arrival(block, sent, here, parents, units[parents]))
        if block.last + 1 < self._count:
            self._arrive(_Arrival(block._replace(sent=True), sent, away, parents, units[parents]))

    def _arrive(self, arrival: _Arrival) -> None:
        key = arrival.block.last + 1, arrival.block.sent
        self._arrived.setdefault(key, []).append(arrival)

    def _backward(self, run: _Run, room: Floats, ahead: Floats) -> tuple[Floats, Ints, Floats]:
        """Returns what a block needs to run backward, for each label.

        These are the bytes that may be ahead meanwhile, the units of memory for running the block
        again, and its time. A block that runs again gets the remaining memory. The device waits if
        that is too little.
        """
        if run.block.saves_all:
            seconds = np.full(len(room), run.backward_seconds)
            return room - run.backward_peak_bytes, np.zeros(len(room), np.int64), seconds
        table, block = self._table, run.block
        unit_bytes, least = table.unit_bytes, table.least[block.first, block.last]
        feasible = np.flatnonzero(np.isfinite(least))
        if not len(feasible):
            return np.full(len(room), -1.0), np.zeros(len(room), np.int64), np.zeros(len(room))
        units = ((room - ahead) // unit_bytes).astype(np.int64)
        units = np.clip(units, feasible[0], len(least) - 1)
        return room - units * unit_bytes, units, least[units]

    def _traced(self, labels: Floats) -> Blocks:
        """Returns the path to the best state. The device waits for transfers under way when the
        chain turns."""
        waiting = self._host.outward_seconds(1) * labels[:, BEHIND]
        waiting = waiting + self._host.inward_seconds(1) * labels[:, AHEAD]
        at = int(np.argmin(labels[:, SECONDS] + waiting))
        seconds = float(labels[at, SECONDS] + waiting[at])
        blocks: list[Block] = []
        stage, sent = self._count, False
        while stage:
            arrival, row = self._from[stage, sent][at]
            blocks.append(arrival.block._replace(units=int(arrival.units[row])))
            stage, sent, at = arrival.block.first, arrival.input_sent, int(arrival.parents[row])
        return Blocks(tuple(reversed(blocks)), seconds)


@njit(cache=True, nogil=True)
def _unbeaten(labels, most):
    """Returns the rows of labels, sorted by time, that no earlier row equals or beats; `most` at
    most."""
    kept = np.empty(most, np.int64)
    count = 0
    for row in range(len(labels)):
        beaten = False
        for k in range(count):
            if np.all(labels[kept[k], :SECONDS] <= labels[row, :SECONDS]):
                beaten = True
                break
        if not beaten:
            kept[count] = row
            count += 1
            if count == most:
                break
    return kept[:count]


def _runs(chain: Chain, graph: RematGraph, stage: int) -> Iterator[_Run]:
    """Yields the blocks that begin with a stage."""
    first, last = chain.stages[stage], len(chain.stages) - 1
    held_bytes = chain.stages[last].held_gradient_bytes
    option = first.options[0]
    yield _Run(
        Block(stage, stage, saves_all=True),
        graph.seconds_of(option.forward),
        held_bytes + option.forward_peak_bytes,
        option.saved_bytes,
        first.output_bytes,
        graph.seconds_of(option.backward),
        option.backward_peak_bytes,
    )
    seconds, needed = 0.0, 0
    for k in range(stage, last):
        current = chain.stages[k]
        between = chain.stages[k - 1].output_bytes if k > stage else 0
        seconds += current.discard_seconds
        needed = max(needed, held_bytes + between + current.discard_peak_bytes)
        output = current.output_bytes
        yield _Run(Block(stage, k, saves_all=False), seconds, max(needed, output), output, output)


def _schedule(
    task: Task, host: Host, table: RotorTable, blocks: Blocks, shared: Set[int]
) -> OffloadSchedule:
    """Returns the steps of blocks, with transfers of the values that are sent."""
    chain, steps, sent = table.chain, list(table.chain.prologue), []
    for block in blocks.blocks:
        begin = len(steps)
        if block.saves_all:
            steps += chain.stages[block.first].options[0].forward
        else:
            for stage in chain.stages[block.first : block.last + 1]:
                steps += stage.discard
        sent += range(begin, len(steps)) if block.sent else ()
    turn = len(steps)
    for block in reversed(blocks.blocks):
        if block.saves_all:
            steps += chain.stages[block.first].options[0].backward
        else:
            steps += table.steps(block.first, block.last, block.units)
    absences = [
        absence
        for step in sent
        for value in task.graph.operators[steps[step]].outputs
        if value not in shared
        and value not in host.stays
        and (absence := absence_over(task.graph, steps, step, value, turn)) is not None
    ]
    return paced(task.graph, host, steps, absences, task.budget_bytes)
