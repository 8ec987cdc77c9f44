"""OffMate: recomputation, offloading of activations, weights and optimizer, updates on the host.

Zhao, Eyraud-Dubois, Le Hellard, Gusak and Beaumont, 2024 (hal-04660745); text in Zhao's thesis,
chapter 4. An integer program (`offmate_program`) says how each block is run, and what share of its
weights and of its optimizer's state is where. Shares are then rounded to whole values such that no
more is on the device than the program has there (section 4.6), transfers are fitted to the steps
(`pacing`), and the program is solved again for less memory where that does not fit.
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
ROUNDS, LEAST_SHARE = 6, 16
"""How often the program is solved, each time for at most this share less memory."""
TOLERANCE = 1e-6
"""The tolerance of shares in solvers' results."""


def offmate(
    task: Task, host: Host, *, sends_activations: bool = True, gap: float = GAP
) -> OffloadFinding:
    """A schedule of blocks within the budget; raises `kiwi.errors.InvalidProblemError` if no
    backward operator is known. Without `sends_activations` only weights and states are copied.
    `gap`: relative, at which the solver ends."""
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
        both = [blocks.schedule(choice, task.budget_bytes, more=more) for more in (True, False)]
        schedules.append(best_schedule(task, host, both) or both[0])
        found = simulate(task.graph, host, schedules[-1])
        if fits(task, host, found):
            break
        excess_bytes = found.peak_bytes - task.budget_bytes
        budget_bytes -= max(1.0, min(excess_bytes, budget_bytes / LEAST_SHARE))
    best = best_schedule(task, host, schedules)
    return OffloadFinding(best, bound, infeasible, deterministic=deterministic)


def batch_choice(task: Task, host: Host, most_batch: float) -> tuple[float, float] | None:
    """The batch size of most throughput within the budget, between 1 and `most_batch` times that of
    the graph, and the seconds for each time the graph's batch then; None where none was found.

    Both are those of the program (section 4.5.3): the batch is no whole number, nor are values
    whole. Everything but updates and what they overwrite is taken to be in proportion to the batch;
    so are gradients of weights while a block runs, which makes them too large.
    """
    program = _Blocks.of(task.graph, host).program(task.budget_bytes, most_batch)
    answer = solve_model(program.model, task.remaining_seconds(), task.seed, GAP)
    if answer.values is None:
        return None
    seconds = program.seconds_of(answer.values)
    return program.choice(answer.values).batch, seconds


@dataclass(frozen=True)
class _Rounded:
    """Whole values: at home on the host, away in the gap, and the updates that the host makes."""

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
        found = (block_options(borders, host, index) for index in borders.stages)
        options = (tuple(o for o in each if sends_activations or not o.sent) for each in found)
        return cls(borders, host, tuple(options), groups_of(borders, host))

    def program(self, budget_bytes: float, most_batch: float = 1.0) -> OffMateProgram:
        """The integer program."""
        return OffMateProgram(
            self.borders, self.host, self.options, self.groups, budget_bytes, most_batch
        )

    def schedule(self, choice: OffMateChoice, budget_bytes: int, *, more: bool) -> OffloadSchedule:
        """The schedule of a solution, in whole values; over the budget if they do not fit. `more`:
        as of `host_updates`."""
        graph = self.borders.graph
        updating = host_updates(graph, self.groups, choice.groups, more=more)
        parts = zip(self.groups, choice.groups, updating, strict=True)
        rounded = [round_group(graph, *each) for each in parts]
        updates = tuple(update for each in rounded for update in each.updates)
        home = frozenset(v for each in rounded for v in each.home)
        away = frozenset(v for each in rounded for v in each.away)
        options = [each[o] for each, o in zip(self.options, choice.options, strict=True)]
        steps, turn, ends = self._steps(options, {each.operator for each in updates})
        absences = [
            *self._sent(options, steps, turn),
            *(a for v in sorted(home | away) for a in self._weight(v, steps, home, away)),
        ]
        outward, host_runs = self._on_host(updates, steps, ends)
        fixed = OffloadSchedule((), outward, (), host_runs, home)
        return paced(graph, self.host, steps, absences, budget_bytes, fixed=fixed)

    def _steps(
        self, options: Sequence[BlockOption], on_host: set[int]
    ) -> tuple[list[int], int, list[int]]:
        """The steps, where the backward part begins, and the last step of each of its blocks."""
        steps = [IDLE, *self.borders.groups.common]
        steps += [k for option in options for k in option.forward]
        turn, ends = len(steps), []
        for option in reversed(options):
            steps += [k for k in option.backward if k not in on_host]
            ends.append(len(steps) - 1)
        return [*steps, IDLE, IDLE], turn, [*ends, len(steps), len(steps) + 1]

    def _sent(self, options: Sequence[BlockOption], steps: list[int], turn: int) -> list[Absence]:
        """The values that blocks send to the host."""
        graph = self.borders.graph
        sent = {v for option in options for v in option.sent}
        found = (
            absence_over(graph, steps, step, v, turn)
            for step in range(1, turn)
            for v in graph.operators[steps[step]].outputs
            if v in sent
        )
        return [each for each in found if each is not None]

    def _weight(
        self, value: int, steps: list[int], home: frozenset[int], away: frozenset[int]
    ) -> list[Absence]:
        """The absences of a weight or state: before its first use, in the longest gap between two,
        and behind its update."""
        operators = self.borders.graph.operators
        uses = [t for t, k in enumerate(steps) if k != IDLE and value in operators[k].inputs]
        found = []
        if value in home and uses:
            found.append(Absence(value, -1, uses[0]))
        if value in away:
            after, before = max(itertools.pairwise(uses), key=lambda pair: pair[1] - pair[0])
            found.append(Absence(value, after, before, None if value in home else 0))
        updating = {each.operator for each in self.host.updates if value in each.overwrites}
        if value in home and uses and steps[uses[-1]] in updating:
            found.append(Absence(value, uses[-1], len(steps), uses[-1] + 1))
        return found

    def _on_host(
        self, updates: Iterable[Update], steps: list[int], ends: list[int]
    ) -> tuple[tuple[Transfer, ...], tuple[HostRun, ...]]:
        """Gradients are copied out until the next block's backward part ends; updates follow."""
        operators = self.borders.graph.operators
        made = {v: t for t, k in enumerate(steps) if k != IDLE for v in operators[k].outputs}
        outward, runs = [], []
        for update in updates:
            gradients = gradient_values(self.borders, (update,))
            begin = max((made[v] for v in gradients), default=0) + 1
            end = next(b for a, b in itertools.pairwise(ends) if a >= begin - 1)
            outward += [Transfer(v, made[v] + 1, end) for v in sorted(gradients)]
            runs.append(HostRun(update.operator, end + 1, len(steps) - 1))
        return tuple(outward), tuple(runs)


def host_updates(
    graph: RematGraph, groups: Sequence[Group], choices: Sequence[GroupChoice], *, more: bool
) -> list[tuple[Update, ...]]:
    """The updates of each group that the host makes: at least as `choices` say (`more`), or as near
    to that as can be, where what one group is off counts for the next."""
    found, owed_bytes = [], 0.0
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
        found.append(tuple(group.updates[place] for place in sorted(chosen)))
    return found


def round_group(
    graph: RematGraph, group: Group, choice: GroupChoice, updates: tuple[Update, ...]
) -> _Rounded:
    """Whole values of a group: on the device at most what the shares have there (section 4.6)."""
    sizes = {v: graph.values[v].size_bytes for v in (*group.weights, *group.states)}
    weights, states = set(group.weights), set(group.states)
    needed = {v for update in updates for v in update.overwrites}
    own = {v: sizes[v] for v in group.weights}
    home = select(own, choice.home, needed & weights)
    home |= select({v: sizes[v] for v in group.states}, choice.states_home, needed & states)
    first = [v for v in group.weights if v in home]
    away = select(own, choice.away, (), first) if group.gap else set()
    return _Rounded(frozenset(home), frozenset(away), updates)


def select(
    sizes: Mapping[int, int], share: float, needed: Iterable[int], first: Iterable[int] = ()
) -> set[int]:
    """Keys that have at least `share` of all bytes, little more, and are all that is `needed`;
    those that come `first` are taken as long as they fit. Greedy."""
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
