"""OffMate: recomputation, offloading of activations, weights and optimizer, updates on the host.

Zhao, Eyraud-Dubois, Le Hellard, Gusak and Beaumont, 2024 (hal-04660745); text in Zhao's thesis,
chapter 4. An integer program (`offmate_program`) says how each block is run, and which shares of
its weights and of its optimizer's state are where. The shares are then rounded to whole values such
that the device holds no more than in the program (section 4.6). Transfers are fitted to the steps
(`pacing`). If they do not fit, the program is solved again for less memory.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kiwi.literature.remat.chain import Borders, stage_borders
from kiwi.literature.remat.graph import RematGraph
from kiwi.literature.remat.offload.blocks import (
    BlockOption,
    Group,
    block_options,
    gradient_values,
    groups_of,
)
from kiwi.literature.remat.offload.host import (
    IDLE,
    Host,
    HostRun,
    OffloadSchedule,
    Transfer,
    Update,
)
from kiwi.literature.remat.offload.offmate_program import GroupChoice, OffMateChoice, OffMateProgram
from kiwi.literature.remat.offload.pacing import Absence, absence_over, paced
from kiwi.literature.remat.offload.simulate import OffloadFinding, best_schedule, fits, simulate
from kiwi.literature.remat.result import Task
from kiwi.solver.mathopt_run import solve_model

GAP = 1e-4
"""The relative gap at which the solver stops."""
ROUNDS, LEAST_SHARE = 6, 16
"""The largest number of programs that are solved. Each lowers the memory by at most 1 /
`LEAST_SHARE`."""
TOLERANCE = 1e-6
"""The tolerance of shares in solvers' results."""


def offmate(
    task: Task, host: Host, *, sends_activations: bool = True, gap: float = GAP
) -> OffloadFinding:
    """Returns a schedule of blocks within the budget.

    Without `sends_activations` only weights and states are copied. `gap` is the relative gap at
    which the solver stops. Raises `kiwi.errors.InvalidProblemError` if no backward operator is
    known.
    """
    blocks = _Blocks.of(task.graph, host, sends_activations)
    budget_bytes, schedules = float(task.budget_bytes), []
    bound, infeasible, deterministic = None, False, True
    for number in range(ROUNDS):
        seconds = task.remaining_seconds() / (ROUNDS - number if number else 2)
        program = blocks.program(budget_bytes)
        answer = solve_model(program.model, seconds, task.seed, gap)
        deterministic = deterministic and not answer.timed_out
        if number == 0 and math.isfinite(answer.bound):
            bound = answer.bound * program.seconds_unit
        infeasible = infeasible or (number == 0 and answer.infeasible)
        if answer.values is None:
            break
        choice = program.choice(answer.values)
        roundings = [
            blocks.schedule(choice, task.budget_bytes, more=more) for more in (True, False)
        ]
        schedules.append(best_schedule(task, host, roundings) or roundings[0])
        simulated = simulate(task.graph, host, schedules[-1])
        if fits(task, host, simulated):
            break
        excess_bytes = simulated.peak_bytes - task.budget_bytes
        budget_bytes -= max(1.0, min(excess_bytes, budget_bytes / LEAST_SHARE))
    best = best_schedule(task, host, schedules)
    return OffloadFinding(best, bound, infeasible, deterministic=deterministic)


def batch_choice(task: Task, host: Host, most_batch: float) -> tuple[float, float] | None:
    """Returns the batch size of most throughput within the budget, and the seconds per batch.

    The batch size is between 1 and `most_batch`, in units of the graph's own batch. The seconds are
    the step's time divided by that batch size. The result is None if no solution was found.

    Both numbers are the program's (section 4.5.3): neither the batch nor values are whole. All
    memory and time is taken to be in proportion to the batch, except updates and the values that
    they overwrite. Gradients of weights that are held while a block runs are in proportion, too,
    which makes them too large.
    """
    program = _Blocks.of(task.graph, host).program(task.budget_bytes, most_batch)
    answer = solve_model(program.model, task.remaining_seconds(), task.seed, GAP)
    if answer.values is None:
        return None
    seconds = program.seconds_of(answer.values)
    return program.choice(answer.values).batch, seconds


@dataclass(frozen=True)
class _Rounded:
    """Whole values of a group.

    - `home`: values that are at home on the host.
    - `away`: values that are away from the device in the group's gap.
    - `updates`: the updates that the host makes.
    """

    home: frozenset[int]
    away: frozenset[int]
    updates: tuple[Update, ...]


@dataclass(frozen=True)
class _Blocks:
    """A graph in blocks with their options, and its weights in groups."""

    borders: Borders
    host: Host
    options: tuple[tuple[BlockOption, ...], ...]
    groups: tuple[Group, ...]

    @classmethod
    def of(cls, graph: RematGraph, host: Host, sends_activations: bool = True) -> "_Blocks":
        host.check(graph)
        borders = stage_borders(graph)
        all_options = (block_options(borders, host, index) for index in borders.stages)
        options = (
            tuple(option for option in alternatives if sends_activations or not option.sent)
            for alternatives in all_options
        )
        return cls(borders, host, tuple(options), groups_of(borders, host))

    def program(self, budget_bytes: float, most_batch: float = 1.0) -> OffMateProgram:
        """Returns the integer program."""
        return OffMateProgram(
            self.borders, self.host, self.options, self.groups, budget_bytes, most_batch
        )

    def schedule(self, choice: OffMateChoice, budget_bytes: int, *, more: bool) -> OffloadSchedule:
        """Returns the schedule of a solution, in whole values; over the budget if they do not fit.

        `more` is as in `host_updates`.
        """
        graph = self.borders.graph
        updating = host_updates(graph, self.groups, choice.groups, more=more)
        parts = zip(self.groups, choice.groups, updating, strict=True)
        rounded = [round_group(graph, *part) for part in parts]
        updates = tuple(update for group in rounded for update in group.updates)
        home = frozenset(value for group in rounded for value in group.home)
        away = frozenset(value for group in rounded for value in group.away)
        options = [
            alternatives[number]
            for alternatives, number in zip(self.options, choice.options, strict=True)
        ]
        steps, turn, ends = self._steps(options, {update.operator for update in updates})
        absences = [
            *self._sent(options, steps, turn),
            *(
                absence
                for value in sorted(home | away)
                for absence in self._weight(value, steps, home, away)
            ),
        ]
        outward, host_runs = self._on_host(updates, steps, ends)
        fixed = OffloadSchedule((), outward, (), host_runs, home)
        return paced(graph, self.host, steps, absences, budget_bytes, fixed=fixed)

    def _steps(
        self, options: Sequence[BlockOption], on_host: set[int]
    ) -> tuple[list[int], int, list[int]]:
        """Returns the steps, the step at which the backward part begins, and the last step of each
        block of it."""
        steps = [IDLE, *self.borders.groups.common]
        steps += [k for option in options for k in option.forward]
        turn, ends = len(steps), []
        for option in reversed(options):
            steps += [k for k in option.backward if k not in on_host]
            ends.append(len(steps) - 1)
        return [*steps, IDLE, IDLE], turn, [*ends, len(steps), len(steps) + 1]

    def _sent(self, options: Sequence[BlockOption], steps: list[int], turn: int) -> list[Absence]:
        """Returns the absences of the values that blocks send to the host."""
        graph = self.borders.graph
        sent = {value for option in options for value in option.sent}
        absences = (
            absence_over(graph, steps, step, value, turn)
            for step in range(1, turn)
            for value in graph.operators[steps[step]].outputs
            if value in sent
        )
        return [absence for absence in absences if absence is not None]

    def _weight(
        self, value: int, steps: list[int], home: frozenset[int], away: frozenset[int]
    ) -> list[Absence]:
        """Returns the absences of a weight or state.

        It may be away before its first use, in the longest gap between two uses, and behind its
        update.
        """
        operators = self.borders.graph.operators
        uses = [step for step, k in enumerate(steps) if k != IDLE and value in operators[k].inputs]
        absences = []
        if value in home and uses:
            absences.append(Absence(value, -1, uses[0]))
        if value in away:
            after, before = max(itertools.pairwise(uses), key=lambda pair: pair[1] - pair[0])
            absences.append(Absence(value, after, before, None if value in home else 0))
        updating = {update.operator for update in self.host.updates if value in update.overwrites}
        if value in home and uses and steps[uses[-1]] in updating:
            absences.append(Absence(value, uses[-1], len(steps), uses[-1] + 1))
        return absences

    def _on_host(
        self, updates: Iterable[Update], steps: list[int], ends: list[int]
    ) -> tuple[tuple[Transfer, ...], tuple[HostRun, ...]]:
        """Returns the copies of gradients to the host, and the updates there.

        Gradients are copied until the next block's backward part ends. Their updates follow.
        """
        operators = self.borders.graph.operators
        made = {
            value: step
            for step, k in enumerate(steps)
            if k != IDLE
            for value in operators[k].outputs
        }
        outward, runs = [], []
        for update in updates:
            gradients = gradient_values(self.borders, (update,))
            begin = max((made[value] for value in gradients), default=0) + 1
            end = next(
                next_end
                for block_end, next_end in itertools.pairwise(ends)
                if block_end >= begin - 1
            )
            outward += [Transfer(value, made[value] + 1, end) for value in sorted(gradients)]
            runs.append(HostRun(update.operator, end + 1, len(steps) - 1))
        return tuple(outward), tuple(runs)


def host_updates(
    graph: RematGraph, groups: Sequence[Group], choices: Sequence[GroupChoice], *, more: bool
) -> list[tuple[Update, ...]]:
    """Returns the updates of each group that the host makes.

    The bytes that they overwrite are at least as many as `choices` say (`more`), or as near to that
    as whole updates can be. In the second case the deviation of one group counts for the next.
    """
    chosen_updates, owed_bytes = [], 0.0
    for group, choice in zip(groups, choices, strict=True):
        sizes = {k: graph.bytes_of(update.overwrites) for k, update in enumerate(group.updates)}
        total_bytes = sum(sizes.values()) or 1
        wanted_bytes = choice.updated * total_bytes + (0.0 if more else owed_bytes)
        chosen = select(sizes, wanted_bytes / total_bytes, ())
        for place in sorted(chosen, key=lambda k: (sizes[k], k)):
            over_bytes = sum(sizes[k] for k in chosen) - wanted_bytes
            if not more and over_bytes > sizes[place] / 2:
                chosen.remove(place)
        owed_bytes = wanted_bytes - sum(sizes[k] for k in chosen)
        chosen_updates.append(tuple(group.updates[place] for place in sorted(chosen)))
    return chosen_updates


def round_group(
    graph: RematGraph, group: Group, choice: GroupChoice, updates: tuple[Update, ...]
) -> _Rounded:
    """Returns whole values of a group, which hold at most its shares on the device (section
    4.6)."""
    sizes = {value: graph.values[value].size_bytes for value in (*group.weights, *group.states)}
    weights, states = set(group.weights), set(group.states)
    needed = {value for update in updates for value in update.overwrites}
    weight_bytes = {value: sizes[value] for value in group.weights}
    home = select(weight_bytes, choice.home, needed & weights)
    home |= select(
        {value: sizes[value] for value in group.states}, choice.states_home, needed & states
    )
    first = [value for value in group.weights if value in home]
    away = select(weight_bytes, choice.away, (), first) if group.gap else set()
    return _Rounded(frozenset(home), frozenset(away), updates)


def select(
    sizes: Mapping[int, int], share: float, needed: Iterable[int], first: Iterable[int] = ()
) -> set[int]:
    """Returns keys that have at least `share` of all bytes, and little more, by a greedy choice.

    All of `needed` are among them. Keys in `first` are taken before others as long as they fit.
    """
    chosen = set(needed)
    left = share * sum(sizes.values()) - sum(sizes[k] for k in chosen)
    preferred = set(first)
    order = sorted(sizes, key=lambda k: (k not in preferred, -sizes[k], k))
    tolerance = TOLERANCE * sum(sizes.values())
    for k in order:
        if k not in chosen and tolerance < left and sizes[k] <= left + tolerance:
            chosen.add(k)
            left -= sizes[k]
    rest = [k for k in sizes if k not in chosen and sizes[k] > 0]
    if left > tolerance and rest:
        chosen.add(min(rest, key=lambda k: (sizes[k], k)))
    return chosen
