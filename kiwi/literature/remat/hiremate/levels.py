"""HiRemate: from the smallest clusters to the whole graph (section 3.2.2).

Clusters of equal height are independent. Different ones are solved in parallel processes, equal
ones once. The whole graph is solved for the budget of the task. A graph small enough for a planner
without parts is given to that planner first, and is then divided all the same.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

from kiwi.literature.remat.chain import Steps
from kiwi.literature.remat.fastsa import fastsa
from kiwi.literature.remat.hiremate.cluster import Hierarchy, Roles, StepPair
from kiwi.literature.remat.hiremate.option import Option, combinations, combined
from kiwi.literature.remat.hiremate.part_solver import (
    HiremateSettings,
    Options,
    PartProblem,
    fewer_options,
    part_options,
    solve_once,
)
from kiwi.literature.remat.hiremate.partition import partition
from kiwi.literature.remat.hiremate.workers import Pool
from kiwi.literature.remat.neighbourhood import moccasin
from kiwi.literature.remat.result import Candidate, Finding, Task, candidate
from kiwi.literature.remat.rotor import rotor
from kiwi.solver.schedule import Schedule

ROUND_SHARE = 0.5
"""The share of the remaining time for a round that is not the last."""
UNDIVIDED_SHARE = 0.5
"""The share of the remaining time for a planner that takes the graph undivided."""
FEWEST_TOP = 3
"""The least number of parts of the whole graph. Few large parts with their own options give the
schedules of few checkpoints, in almost no time."""
SHORTEST_ROUND = 0.05
"""No further round begins if less than this share of the time limit is left."""


def hiremate(task: Task, settings: HiremateSettings | None = None) -> Finding:
    """Returns the best schedule that H-ILP recombines, over divisions that grow finer at the top.

    Raises `kiwi.errors.InvalidProblemError` if no backward operator is known.
    """
    settings = settings or HiremateSettings()
    roles = Roles(task.graph)
    nodes = roles.forward_graph()
    is_small = len(task.graph.operators) <= settings.most_direct
    candidates: list[Candidate] = []
    rounds, complete = 0, True

    def add(planner: Callable[[Task], Finding]) -> None:
        nonlocal complete
        finding = _by(planner, task)
        complete = complete and finding.deterministic
        if finding.schedule is not None:
            candidates.append(candidate(task, finding.schedule))

    if is_small:
        add(moccasin)
    with closing(Pool(settings.workers)) as pool:
        levels = _Levels(task, settings, pool)
        for most_top in _sizes(settings, len(roles.forward)):
            share = 1.0 if most_top >= len(roles.forward) else ROUND_SHARE
            seconds = share * task.remaining_seconds()
            shortest = max(SHORTEST_ROUND * task.time_limit_seconds, levels.pricing_seconds)
            if rounds and seconds < shortest:
                complete = False
                break
            trees = partition(nodes, most_top, settings.most_lower)
            candidates.append(levels.plan(roles.whole(trees), seconds))
            rounds += 1
            if rounds == 1 and not any(proposal.fits for proposal in candidates):
                for planner in (rotor, fastsa):  # may fit where no combination does
                    add(planner)
            if any(proposal.is_least for proposal in candidates):
                break
    best = min(candidates, key=lambda proposal: proposal.rank)
    is_repeatable = complete and levels.complete
    return Finding(best.schedule, iterations=rounds, deterministic=is_repeatable)


def _by(planner: Callable[[Task], Finding], task: Task) -> Finding:
    """Returns the result of a planner that takes the graph undivided.

    The planner gets `UNDIVIDED_SHARE` of the work and of the remaining time.
    """
    deadline = time.monotonic() + UNDIVIDED_SHARE * task.remaining_seconds()
    planned_seconds = UNDIVIDED_SHARE * task.time_limit_seconds
    return planner(replace(task, deadline=deadline, time_limit_seconds=planned_seconds))


def _sizes(settings: HiremateSettings, count: int) -> list[int]:
    """Returns the largest number of parts of the whole graph in each round, in ascending order."""
    sizes = [settings.most_top]
    while settings.most_top < count and sizes[0] >= 2 * FEWEST_TOP:
        sizes.insert(0, sizes[0] // 2)
    while sizes[-1] < count and 2 * sizes[-1] <= settings.most_at_all:
        sizes.append(2 * sizes[-1])
    return sizes


def _mapped(steps: Steps, operators: Steps) -> Steps:
    return tuple(operators[k] for k in steps)


class _Levels:
    """The clusters of a hierarchy by height. Solved clusters are kept from round to round."""

    def __init__(self, task: Task, settings: HiremateSettings, pool: Pool) -> None:
        self._task, self._settings, self._pool = task, settings, pool
        self._options: dict[int, Options] = {}
        self._solved: dict[PartProblem, Options] = {}
        self.complete = True
        """Whether the clock has left nothing out."""
        self.pricing_seconds = 0.0
        """The time of the last `plan` without its searches. A plan of a finer division takes
        longer."""

    def plan(self, root: Hierarchy, seconds: float) -> Candidate:
        """Returns the best schedule of the whole graph that is found within `seconds`."""
        ends = time.monotonic() + seconds
        self._solve_parts(root, self._settings.parts_share * seconds)
        started = time.monotonic()
        problem = self._problem(root)
        budget_bytes = self._task.budget_bytes - self._task.graph.resident_bytes
        options = part_options(problem)
        fastest, _ = self._fastest_combination(root, options)
        self.pricing_seconds = time.monotonic() - started
        pair = None
        if not fastest.is_least:
            options = fewer_options(options, self._settings.most_options)
            _, known = self._fastest_combination(root, options)
            left = ends - time.monotonic()
            pair, closed = solve_once(problem, options, budget_bytes, None, left, known)
            self.complete = self.complete and closed
        candidates = [fastest] if pair is None else [fastest, self._candidate(root, pair)]
        return min(candidates, key=lambda proposal: proposal.rank)

    def _fastest_combination(
        self, root: Hierarchy, options: Sequence[Sequence[Option]]
    ) -> tuple[Candidate, list[int] | None]:
        """Returns the combination with the fewest exchanges within the budget, by bisection.

        The second result is the option of each part, or None if the combination is over the budget.
        """
        chosen = combinations(root.cluster, options)
        low, high = -1, len(chosen) - 1
        count, best = high, self._candidate(root, combined(options, chosen[high]))
        while high - low > 1:
            middle = (low + high) // 2
            tried = self._candidate(root, combined(options, chosen[middle]))
            if tried.rank < best.rank:
                count, best = middle, tried
            if tried.fits:
                high = middle
            else:
                low = middle
        return best, chosen[count] if best.fits else None

    def _candidate(self, root: Hierarchy, pair: StepPair) -> Candidate:
        steps = tuple(root.operators[k] for k in (*pair[0], *pair[1]))
        return candidate(self._task, Schedule(steps))

    def _problem(self, each: Hierarchy) -> PartProblem:
        """Returns the problem of a cluster whose parts are all solved."""
        parts = tuple(
            tuple(
                (_mapped(forward, places), _mapped(backward, places))
                for forward, backward in self._options[id(part)]
            )
            for places, part in zip(each.cluster.children, each.children, strict=True)
        )
        return PartProblem(each.cluster, parts, self._settings, self._task.seed)

    def _solve_parts(self, root: Hierarchy, seconds: float) -> None:
        levels: dict[int, list[Hierarchy]] = {}
        for part in root.parts():
            levels.setdefault(part.height, []).append(part)
        self._options = {}
        ends = time.monotonic() + seconds
        for height in sorted(levels):
            left = (ends - time.monotonic()) / max(1, max(levels) - max(0, height - 1))
            self._solve_level(levels[height], max(0.0, left))

    def _solve_level(self, members: list[Hierarchy], seconds: float) -> None:
        settings, problems = self._settings, [self._problem(member) for member in members]
        fresh = [problem for problem in dict.fromkeys(problems) if problem not in self._solved]
        starting = 0.0 if self._pool.started else settings.process_seconds
        parallel = min(settings.workers, len(fresh)) if seconds >= 2 * starting else 1
        left = max(0.0, seconds - starting) if parallel > 1 else seconds
        problem_seconds = left * max(1, parallel) / max(1, len(fresh))
        solved = self._pool.solve(fresh, problem_seconds, parallel)
        self.complete = self.complete and all(complete for _, complete in solved)
        self._solved.update(zip(fresh, (options for options, _ in solved), strict=True))
        for member, problem in zip(members, problems, strict=True):
            self._options[id(member)] = self._solved[problem]
