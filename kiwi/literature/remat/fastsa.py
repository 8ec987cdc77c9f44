"""FastSA: simulated annealing with recomputation and reordering (Imanishi et al., NeurIPS 2023).

The first stage anneals grouped operators until the budget is met or the moves are used up. The
second stage anneals single operators at low temperature. The length of the sequence differs from
the text: it is the smallest power of two that leaves at least `GAPS_PER_STEP` positions per step,
instead of always 2**20, because a tree that fits the cache is faster.

**Node grouping** (appendix C.1) makes groups of operators that are computed as one. An operator
whose inputs are no larger than its outputs is joined to each of its readers. Its result is then
never kept, and each reader recomputes it. Groups make the annealer recompute chains in one move.

Grouping differs from the text in two points, without which all of a graph may end in one group.
Sizes are compared for the operator alone, not for the group that it has become. An operator without
inputs stays alone. (The text has parameters among the inputs, which prevents both.)
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from kiwi.literature.remat.annealing.anneal import SHARP, Plan, anneal, objective_value, start_best
from kiwi.literature.remat.annealing.memory import peak_bytes
from kiwi.literature.remat.annealing.moves import MOVE_KINDS, ROTATE
from kiwi.literature.remat.annealing.sequence import load, make_state
from kiwi.literature.remat.annealing.tables import make_tables
from kiwi.literature.remat.graph import RematGraph
from kiwi.literature.remat.result import Finding, Task
from kiwi.literature.remat.simulate import memory_bytes
from kiwi.solver.schedule import Schedule

GAPS_PER_STEP = 8
"""The least number of positions of the sequence for each step of the schedule."""
NOMINAL_MOVES_PER_SECOND = 1_000_000
"""The rate from which the number of moves is derived, so that results do not depend on the speed of
the machine."""
CHUNK_MOVES = 20_000
"""The number of moves between two looks at the clock."""
FIRST_STAGE_SHARE = 0.6
"""The share of the remaining time for the first stage, on machines too slow for the planned
moves."""
PAPER_SHARES = (1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
"""The relative frequencies of the kinds of moves in the paper."""

LONGEST_GROUP = 256
"""The largest number of operators in one group. An operator that would make a larger group is not
joined. Without this limit, the groups of a long chain together would grow quadratically."""


@dataclass(frozen=True)
class AnnealingSettings:
    """The settings of one annealing run.

    - `moves`: the number of changes that are tried.
    - `objective`: `PRODUCT` (equation 1), `SHARP` (footnote 2, meets budgets) or `STRICT` (Kiwi's
      own).
    - `first_temperature`, `last_temperature`: relative to the objective at the start.
    - `shares`: the relative frequencies of the kinds of moves (`annealing.moves`).
    - `stop_at_budget`: end as soon as the budget is met.
    """

    moves: int
    objective: int = SHARP
    first_temperature: float = 1e-3
    last_temperature: float = 1e-7
    shares: tuple[float, ...] = PAPER_SHARES
    stop_at_budget: bool = False


@dataclass(frozen=True)
class AnnealingOutcome:
    """The best sequence of a run.

    - `within_budget`: whether its peak is within the budget.
    - `temperature`: the relative temperature at which the run ended.
    - `moves`: the number of moves made.
    - `completed`: the clock neither ended nor hurried the run.
    """

    schedule: Schedule
    within_budget: bool
    temperature: float
    moves: int
    completed: bool


FIRST_STAGE = AnnealingSettings(20_000_000, stop_at_budget=True)
SECOND_STAGE = AnnealingSettings(6_000_000)
"""The settings of the second stage. It has more moves than the text's, because the first stage
mostly ends early and leaves time."""


def fastsa(
    task: Task, first: AnnealingSettings = FIRST_STAGE, second: AnnealingSettings = SECOND_STAGE
) -> Finding:
    """Runs both stages on `task.graph`, with fewer moves if the time limit is short."""
    first, second = within_time(task.time_limit_seconds, first, second)
    grouping = group_operators(task.graph)
    order, seconds = Schedule(grouping.graph.order), FIRST_STAGE_SHARE * task.remaining_seconds()
    grouped = run_annealing(task, grouping.graph, order, first, seconds)
    heat = grouped.temperature
    if grouped.within_budget:
        second = replace(second, first_temperature=heat, last_temperature=heat * 1e-4)
    else:  # beyond the text: groups cannot meet the budget, so single operators get a whole run
        second = replace(first, moves=first.moves // 2, stop_at_budget=False)
    start = grouping.expand(grouped.schedule)
    single = run_annealing(task, task.graph, start, second, task.remaining_seconds())
    return Finding(
        single.schedule,
        iterations=grouped.moves + single.moves,
        deterministic=grouped.completed and single.completed,
    )


def order_only(task: Task) -> Finding:
    """Returns a topological order of small peak, without recomputation (appendix B.2)."""
    first, _ = within_time(task.time_limit_seconds, FIRST_STAGE, SECOND_STAGE)
    shares = tuple(float(kind == ROTATE) for kind in range(MOVE_KINDS))
    rotating = replace(first, shares=shares)
    outcome = run_annealing(task, task.graph, Schedule(task.graph.order), rotating)
    return Finding(outcome.schedule, iterations=outcome.moves, deterministic=outcome.completed)


def run_annealing(
    task: Task,
    graph: RematGraph,
    start: Schedule,
    settings: AnnealingSettings,
    seconds: float = math.inf,
    fetch_seconds: Mapping[int, float] | None = None,
) -> AnnealingOutcome:
    """Makes one annealing run on `graph` (the task's own, or a grouping of it) from `start`.

    The clock is read between chunks of moves. A run that would take longer than `seconds` cools
    faster, with fewer moves. At the task's deadline the run ends, however hot. `fetch_seconds` maps
    values that may be fetched from the host to the time of a fetch; operators beyond those of the
    graph stand for the fetches (`annealing.tables`).
    """
    started = time.monotonic()
    tables = make_tables(graph, start, fetch_seconds)
    least = GAPS_PER_STEP * (len(start.steps) + 1)
    positions = max(64, 1 << (least - 1).bit_length())
    state = make_state(tables, positions, task.seed)
    load(tables, state, np.array(start.steps, np.int32))
    budget = float(max(1, task.budget_bytes - graph.resident_bytes))
    best = start_best(state, budget)
    peak = peak_bytes(state.memory)
    value = objective_value(settings.objective, budget, peak, state.seconds[0])
    unit = value if value > 0 else 1.0
    cumulated = np.cumsum(settings.shares) / np.sum(settings.shares)
    cumulated[-1] = 1.0
    done, temperature = 0, settings.first_temperature
    fall = settings.last_temperature / settings.first_temperature
    stopped, progress, hurried = settings.stop_at_budget and best.score[0] > 0, 0.0, False
    while progress < 1.0 and not stopped and task.remaining_seconds() > 0:
        chunk = min(CHUNK_MOVES, settings.moves - done)
        done += chunk
        progress, passed = done / settings.moves, (time.monotonic() - started) / max(seconds, 1e-3)
        if passed > progress:
            progress, hurried = passed, True
        next_temperature = settings.first_temperature * fall ** min(1.0, progress)
        hot, cold = temperature * unit, next_temperature * unit
        plan = Plan(budget, settings.objective, chunk, hot, cold, cumulated)
        value = anneal(tables, state, best, plan, value)
        temperature = next_temperature
        stopped = settings.stop_at_budget and best.score[0] > 0
    return AnnealingOutcome(
        Schedule(tuple(best.steps[: best.count[0]].tolist())),
        bool(best.score[0]),
        temperature,
        done,
        not hurried and (stopped or done >= settings.moves),
    )


def within_time(seconds: float, *stages: AnnealingSettings) -> list[AnnealingSettings]:
    """Returns the stages with as many moves as `seconds` allow for.

    The time includes a second stage of half as many moves as the first, which `fastsa` runs if
    groups cannot meet the budget.
    """
    moves = [stage.moves for stage in stages]
    planned = max(1.5 * moves[0], sum(moves))
    share = min(1.0, 0.9 * seconds * NOMINAL_MOVES_PER_SECOND / planned)
    return [replace(stage, moves=max(1, round(share * stage.moves))) for stage in stages]


@dataclass(frozen=True)
class Grouping:
    """A graph of groups: group `g` computes the original operators `members[g]` in turn.

    The values are the original values. An operator may be a member of several groups.
    """

    graph: RematGraph
    members: tuple[tuple[int, ...], ...]

    def expand(self, schedule: Schedule) -> Schedule:
        """Returns the schedule of the original operators."""
        return Schedule(
            tuple(operator for step in schedule.steps for operator in self.members[step])
        )


def group_operators(graph: RematGraph) -> Grouping:
    """Returns the groups of the graph's operators, by algorithm 1 of FastSA on the given order."""
    members: dict[int, tuple[int, ...]] = {k: (k,) for k in range(len(graph.operators))}
    inputs = {k: graph.operators[k].inputs for k in members}
    readers: list[dict[int, None]] = [
        dict.fromkeys(value_readers) for value_readers in graph.readers
    ]
    for index in graph.order:
        joined = _readers_to_join(graph, index, readers)
        if any(len(members[index]) + len(members[reader]) > LONGEST_GROUP for reader in joined):
            continue
        outputs = graph.operators[index].outputs
        for reader in joined:
            members[reader] = tuple(dict.fromkeys(members[index] + members[reader]))
            kept = (value for value in inputs[reader] if value not in outputs)
            inputs[reader] = tuple(dict.fromkeys((*inputs[index], *kept)))
            for value in inputs[index]:
                readers[value][reader] = None
        if joined:
            for value in inputs[index]:
                readers[value].pop(index, None)
            del members[index], inputs[index]
    return _build(graph, members, inputs)


def _readers_to_join(
    graph: RematGraph, index: int, readers: list[dict[int, None]]
) -> tuple[int, ...]:
    """Returns the readers that take over operator `index`; none if its result must stay a value."""
    outputs = graph.operators[index].outputs
    inputs = graph.operators[index].inputs
    if not inputs or not outputs or graph.results.intersection(outputs):
        return ()
    joined = readers[outputs[0]]
    is_small = graph.bytes_of(inputs) <= graph.bytes_of(outputs)
    together = all(readers[value].keys() == joined.keys() for value in outputs)
    return tuple(joined) if is_small and together and graph.operators[index].recomputable else ()


def _build(
    graph: RematGraph, members: dict[int, tuple[int, ...]], inputs: dict[int, tuple[int, ...]]
) -> Grouping:
    number = {index: place for place, index in enumerate(members)}
    operators = tuple(
        replace(
            graph.operators[index],
            compute_seconds=graph.seconds_of(group),
            inputs=inputs[index],
            temporary_bytes=_temporary_bytes(graph, index, group),
            recomputable=all(graph.operators[member].recomputable for member in group),
        )
        for index, group in members.items()
    )
    order = tuple(number[index] for index in graph.order if index in number)
    # Values within a group have no writer any more; they must not count as resident.
    outside = {value for operator in operators for value in operator.inputs + operator.outputs}
    values = tuple(
        value if place in outside else replace(value, size_bytes=0)
        for place, value in enumerate(graph.values)
    )
    grouped = RematGraph(operators, values, order, graph.results)
    return Grouping(grouped, tuple(members.values()))


def _temporary_bytes(graph: RematGraph, index: int, members: tuple[int, ...]) -> int:
    """Returns the memory in a group without its inputs and outputs, which are live throughout."""
    outputs = frozenset(graph.operators[index].outputs)
    return max(memory_bytes(graph, Schedule(members), after=frozenset(), hidden=outputs))
