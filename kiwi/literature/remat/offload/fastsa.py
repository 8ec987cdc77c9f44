"""FastSA with offloading (Imanishi et al., NeurIPS 2023, appendix B.3).

Single operators are annealed, and values may also be fetched from the host in front of a reader.
The text adds a fixed cost for every fetch and for every value that is offloaded. Here the cost of a
fetch is a share of the time of its copies, both ways. The right share is not known, because copies
overlap with computing. Several shares are therefore tried, from the given order and from the
schedule of plain FastSA, and the schedules are compared by simulation.

The times of copies are chosen after the annealing (`pacing`). The annealing assumes that values
leave at once. If they cannot, it is repeated for less memory.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from kiwi.literature.remat.fastsa import (
    FIRST_STAGE,
    PAPER_SHARES,
    SECOND_STAGE,
    AnnealingSettings,
    fastsa,
    run_annealing,
    within_time,
)
from kiwi.literature.remat.graph import RematGraph
from kiwi.literature.remat.offload.host import Host, OffloadSchedule
from kiwi.literature.remat.offload.pacing import Absence, paced
from kiwi.literature.remat.offload.simulate import OffloadFinding, best_schedule, simulate
from kiwi.literature.remat.result import Task
from kiwi.solver.schedule import Schedule

PRICES = (1.0, 0.3, 0.1, 0.03)
"""The shares of the time of copies that are tried as the cost of a fetch."""
ROUNDS, LEAST_SHARE = 2, 16
"""The largest number of annealing rounds. Each round lowers the memory by at most 1 /
`LEAST_SHARE`."""
SHARES = (*PAPER_SHARES[:-1], 1.0)
"""The relative frequencies of the kinds of moves: the paper's, and fetches."""
HEAT, LEAST_HEAT = 0.3, 1e-3
"""The first temperature in mean times of an operator, and its least value, which is the text's."""


def fastsa_offload(
    task: Task,
    host: Host,
    prices: Sequence[float] = PRICES,
    first: AnnealingSettings = FIRST_STAGE,
    second: AnnealingSettings = SECOND_STAGE,
) -> OffloadFinding:
    """Returns the best schedule over all prices; plain FastSA runs first.

    All runs with fetches together make as many moves as plain FastSA.

    - `prices`: the shares of the time of copies that are tried.
    - `first`, `second`: the stages of plain FastSA.
    """
    plain = fastsa(task, first, second)
    order = Schedule(task.graph.order)
    best = plain.schedule or order
    schedules, deterministic = [OffloadSchedule(best.steps)], plain.deterministic
    seconds = task.time_limit_seconds / (2 * len(prices) * ROUNDS)
    for price, start in itertools.product(prices, (order, best)):
        annealed, completed = _annealed(task, host, price, start, seconds)
        deterministic = deterministic and completed
        schedules += annealed
    return OffloadFinding(best_schedule(task, host, schedules), deterministic=deterministic)


def _annealed(
    task: Task, host: Host, price: float, start: Schedule, seconds: float
) -> tuple[list[OffloadSchedule], bool]:
    """Returns schedules for one price, and whether the moves were made in time.

    The number of moves of one run is derived from `seconds`.
    """
    graph, budget_bytes = task.graph, task.budget_bytes
    heat = max(LEAST_HEAT, HEAT / max(1, len(graph.operators)))
    cooling = replace(SECOND_STAGE, first_temperature=heat, last_temperature=1e-4 * heat)
    (settings,) = within_time(seconds, replace(cooling, shares=SHARES))
    movable = [
        value
        for value, writer in enumerate(graph.producer)
        if writer >= 0 and value not in host.stays
    ]
    sizes = {value: graph.values[value].size_bytes for value in movable}
    fetched = {value: price * host.both_ways_seconds(size) for value, size in sizes.items()}
    schedules, completed = [], True
    for _ in range(ROUNDS):
        tightened_task = replace(task, budget_bytes=max(1, budget_bytes))
        outcome = run_annealing(tightened_task, graph, start, settings, fetch_seconds=fetched)
        completed = completed and outcome.completed
        schedules.append(with_fetches(task, host, outcome.schedule, list(fetched)))
        excess_bytes = simulate(graph, host, schedules[-1]).peak_bytes - task.budget_bytes
        if excess_bytes <= 0 or not outcome.within_budget:
            break
        budget_bytes -= max(1, min(excess_bytes, budget_bytes // LEAST_SHARE))
    return schedules, completed


def with_fetches(task: Task, host: Host, schedule: Schedule, fetched: list[int]) -> OffloadSchedule:
    """Returns the schedule with copies, from a schedule in which operators stand for fetches.

    Operator `len(task.graph.operators) + n` fetches the value `fetched[n]`.
    """
    count = len(task.graph.operators)
    steps: list[int] = []
    fetches: list[tuple[int, int]] = []
    for operator in schedule.steps:
        if operator < count:
            steps.append(operator)
        else:
            fetches.append((fetched[operator - count], len(steps)))
    absences: dict[tuple[int, int], Absence] = {}
    hosted: set[int] = set()
    for value, at in fetches:
        absence = _absence(task.graph, steps, value, at, hosted)
        if absence is not None:  # of several fetches for one reader, the first counts
            absences.setdefault((value, absence.before), absence)
            hosted.add(value)
    return paced(task.graph, host, steps, list(absences.values()), task.budget_bytes)


def _absence(
    graph: RematGraph, steps: list[int], value: int, at: int, hosted: set[int]
) -> Absence | None:
    """Returns the absence from the last use in front of step `at` to the first use from there on.

    None if the value is computed again before it is read, or if there is no time to copy it.
    """
    writer, readers = graph.producer[value], set(graph.readers[value])
    before = next(
        (step for step in range(at, len(steps)) if steps[step] in readers | {writer}), None
    )
    if before is None or steps[before] == writer:
        return None
    uses = [step for step in range(at) if steps[step] in readers | {writer}]
    made = max(step for step in uses if steps[step] == writer)
    if value in hosted:
        return Absence(value, uses[-1], before) if uses[-1] + 1 < before else None
    room = max(made + 1, uses[-1]) < before - 1
    return Absence(value, uses[-1], before, made + 1) if room else None
