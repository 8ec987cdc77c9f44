"""Best-first search: a configuration is planned only while it may still be the best.

Every configuration has a score to minimise: first the score of its bound, then of its plan, then of
its checked plan. The configuration with the least score advances by one stage. The search ends when
the configuration with the least score has passed all stages. Every other configuration then has a
bound, or an unchecked plan, that is no better.

Tasks run in parallel, ahead of this order. An outcome counts only when its configuration is next,
so the answer does not depend on the order in which tasks finish.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait

from kiwi.configurations.configuration import Outcome, Stage
from kiwi.configurations.tasks import Found

AHEAD = 4
"""Tasks are started for this many configurations per running task, in the order of their scores."""

WORTH = 0.001
"""A configuration is not planned if its bound is not below the best plan by this fraction."""

Task = tuple[Stage, int]
"""A stage, and the number of the configuration that is to pass it."""


class BestFirst:
    """A search over numbered configurations.

    - `start`: starts a task, given the packed plan of the stage before.
    - `score`: returns the score of a configuration with a step time. Scores are minimised.
    - `stages`: the stages in order. Every configuration passes the first one.
    - `most_tasks`: the number of tasks that run at the same time.
    - `known`: the outcomes of an earlier search.
    - `on_found`: called once with every other outcome, in any order.
    - `plans_all`: whether all configurations are planned, whatever their bounds.
    """

    def __init__(
        self,
        start: Callable[[Stage, int, bytes | None], "Future[Found]"],
        score: Callable[[int, float], float],
        stages: Sequence[Stage],
        *,
        most_tasks: int,
        known: Mapping[Task, Found],
        on_found: Callable[[Task, Found], None],
        plans_all: bool,
    ) -> None:
        self._start, self._score, self._stages = start, score, tuple(stages)
        self._most_tasks, self._on_found, self._plans_all = most_tasks, on_found, plans_all
        self._found: dict[Task, Found] = dict(known)
        self._running: dict[Future[Found], Task] = {}
        self.counted: dict[int, list[Found]] = {}

    def best(self, numbers: Iterable[int]) -> int | None:
        """Searches among `numbers`, and returns the number of the best configuration; None if none
        has a plan. Afterwards, `counted` has the outcomes of each configuration."""
        waiting = [(-math.inf, number, 0) for number in numbers]
        self.counted |= {number: [] for _, number, _ in waiting}
        heapq.heapify(waiting)
        while waiting:
            score, number, done = waiting[0]
            if done == len(self._stages):
                return number
            finished = self._found_by((self._stages[done], number), waiting)
            heapq.heappop(waiting)
            self.counted[number].append(finished)
            if finished.outcome.step_seconds is not None:
                heapq.heappush(waiting, (self._rank(number, finished.outcome), number, done + 1))
            elif self._may_fit(finished.outcome):
                heapq.heappush(waiting, (score, number, done + 1))
        return None

    def _may_fit(self, outcome: Outcome) -> bool:
        """Returns whether the compile check may still accept a configuration without a plan that
        fits by its estimate."""
        is_open = outcome.stage is Stage.PLAN and not outcome.is_proven
        return is_open and Stage.CHECK in self._stages

    def _rank(self, number: int, outcome: Outcome) -> float:
        assert outcome.step_seconds is not None
        score = self._score(number, outcome.step_seconds)
        if outcome.stage is not Stage.BOUND:
            return score
        return -math.inf if self._plans_all else (1 + WORTH) * score

    def _found_by(self, task: Task, waiting: list[tuple[float, int, int]]) -> Found:
        while task not in self._found:
            self._start_ahead(waiting)
            done, _ = wait(self._running, return_when=FIRST_COMPLETED)
            for future in done:
                finished = self._running.pop(future)
                self._found[finished] = future.result()
                self._on_found(finished, self._found[finished])
        return self._found[task]

    def _start_ahead(self, waiting: list[tuple[float, int, int]]) -> None:
        """Starts tasks up to the allowed number, in the order of their scores."""
        several = self._most_tasks > 1
        ahead = AHEAD * self._most_tasks if several else 1
        started = set(self._running.values())
        for _, number, done in heapq.nsmallest(ahead, waiting):
            if len(self._running) >= self._most_tasks:
                return
            if done == len(self._stages):
                continue
            task = self._stages[done], number
            if task not in started and task not in self._found:
                before = self._found.get((self._stages[done - 1], number)) if done else None
                future = self._start(*task, before.packed if before else None)
                self._running[future] = task

    def stop(self) -> None:
        """Cancels the tasks that were started ahead."""
        for future in self._running:
            future.cancel()
