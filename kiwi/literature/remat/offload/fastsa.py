"""FastSA with offloading (Imanishi et al., NeurIPS 2023, appendix B.3).

Annealing on single operators, in which values may also be fetched from the host in front of a
reader. The text adds a fixed cost for every fetch and for every value that is offloaded; here the
cost of a fetch is a share of the time of its copies, both ways. As copies overlap with computing,
the right share is not known: several are tried, from the given order and from the schedule of plain
FastSA, and the schedules compared as they are simulated. When to copy is found behind the annealing
(`pacing`), which takes values to leave at once: where they cannot, it is repeated for less memory.
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
ROUNDS, LEAST_SHARE = 2, 16
"""The number of annealing rounds, each for this share of the memory less at most."""
SHARES = (*PAPER_SHARES[:-1], 1.0)
HEAT, LEAST_HEAT = 0.3, 1e-3
"""The first temperature, in mean times of an operator, and that of the text, at least."""


def fastsa_offload(
    task: Task,
    host: Host,
    prices: Sequence[float] = PRICES,
    first: AnnealingSettings = FIRST_STAGE,
    second: AnnealingSettings = SECOND_STAGE,
) -> OffloadFinding:
    """The best schedule of all prices: as many moves as plain FastSA makes, which comes first.

    `prices`: shares of the time of copies that are tried; `first`, `second`: the stages of plain
    FastSA.
    """
    plain = fastsa(task, first, second)
    order = Schedule(task.graph.order)
    best = plain.schedule or order
    schedules, deterministic = [OffloadSchedule(best.steps)], plain.deterministic
    seconds = task.time_limit_seconds / (2 * len(prices) * ROUNDS)
    for price, start in itertools.product(prices, (order, best)):
        found, completed = _annealed(task, host, price, start, seconds)
        deterministic = deterministic and completed
        schedules += found
    return OffloadFinding(best_schedule(task, host, schedules), deterministic=deterministic)


def _annealed(
    task: Task, host: Host, price: float, start: Schedule, seconds: float
) -> tuple[list[OffloadSchedule], bool]:
    """Schedules for one price, and whether the moves were made in time; `seconds`: by which the
    moves of one run are planned."""
    graph, budget_bytes = task.graph, task.budget_bytes
    heat = max(LEAST_HEAT, HEAT / max(1, len(graph.operators)))
    cooling = replace(SECOND_STAGE, first_temperature=heat, last_temperature=1e-4 * heat)
    (settings,) = within_time(seconds, replace(cooling, shares=SHARES))
    movable = [v for v, k in enumerate(graph.producer) if k >= 0 and v not in host.stays]
    sizes = {v: graph.values[v].size_bytes for v in movable}
    fetched = {v: price * host.both_ways_seconds(size) for v, size in sizes.items()}
    schedules, completed = [], True
    for _ in range(ROUNDS):
        own = replace(task, budget_bytes=max(1, budget_bytes))
        found = run_annealing(own, graph, start, settings, fetch_seconds=fetched)
        completed = completed and found.completed
        schedules.append(with_fetches(task, host, found.schedule, list(fetched)))
        excess_bytes = simulate(graph, host, schedules[-1]).peak_bytes - task.budget_bytes
        if excess_bytes <= 0 or not found.within_budget:
            break
        budget_bytes -= max(1, min(excess_bytes, budget_bytes // LEAST_SHARE))
    return schedules, completed


def with_fetches(task: Task, host: Host, schedule: Schedule, fetched: list[int]) -> OffloadSchedule:
    """The schedule in which operators beyond those of the graph fetch the values `fetched`."""
    count = len(task.graph.operators)
    steps: list[int] = []
    fetches: list[tuple[int, int]] = []
    for k in schedule.steps:
        if k < count:
            steps.append(k)
        else:
            fetches.append((fetched[k - count], len(steps)))
    absences: dict[tuple[int, int], Absence] = {}
    hosted: set[int] = set()
    for value, at in fetches:
        absence = _absence(task.graph, steps, value, at, hosted)
        if absence is not None:  # the first of several fetches for one reader
            absences.setdefault((value, absence.before), absence)
            hosted.add(value)
    return paced(task.graph, host, steps, list(absences.values()), task.budget_bytes)


def _absence(
    graph: RematGraph, steps: list[int], value: int, at: int, hosted: set[int]
) -> Absence | None:
    """From the last use in front of step `at` to the first behind; None where the value is computed
    again before it is read, or is not away long enough to be copied."""
    writer, readers = graph.producer[value], set(graph.readers[value])
    before = next((t for t in range(at, len(steps)) if steps[t] in readers | {writer}), None)
    if before is None or steps[before] == writer:
        return None
    uses = [t for t in range(at) if steps[t] in readers | {writer}]
    made = max(t for t in uses if steps[t] == writer)
    if value in hosted:
        return Absence(value, uses[-1], before) if uses[-1] + 1 < before else None
    room = max(made + 1, uses[-1]) < before - 1
    return Absence(value, uses[-1], before, made + 1) if room else None
