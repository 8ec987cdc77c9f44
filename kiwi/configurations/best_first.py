"""Best first: only what may still be the best is planned.

Every configuration has a score, to be minimised: first that of its bound, then that of its plan,
then that of its checked plan. The configuration of the least score goes one stage further, until
the one of the least score is through. Whatever is left has a bound, or an unchecked plan, that is
no better.

Tasks run at the same time, ahead of the order. An outcome counts when its turn comes, so that the
answer is the same whatever finishes first.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait

from kiwi.configurations.configuration import Outcome, Stage
from kiwi.configurations.tasks import Found

AHEAD = 4
"""How far ahead tasks are started, in parts of how many run at the same time."""

WORTH = 0.001
"""By which part a bound has to be below the best plan for the configuration to be planned."""

Task = tuple[Stage, int]
"""A stage of a configuration, by its number."""


class BestFirst:
    """A search over numbered configurations.

    - `start`: starts a task, with the packed plan of the stage before.
    - `score`: of a configuration and seconds of its step, to be minimised.
    - `stages`: in order; the first one is asked of every configuration.
    - `most_tasks`: at the same time.
    - `known`: what was found before; `on_found`: called once with all else, in any order.
    - `plans_all`: no configuration is left out by its bound.
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
        """The number of the best configuration; None where none has a plan. `counted` has the
        outcomes of each by then."""
        waiting = [(-math.inf, number, 0) for number in numbers]
        self.counted |= {number: [] for _, number, _ in waiting}
        heapq.heapify(waiting)
        while waiting:
            score, number, done = waiting[0]
            if done == len(self._stages):
                return number
            found = self._found_by((self._stages[done], number), waiting)
            heapq.heappop(waiting)
            self.counted[number].append(found)
            if found.outcome.step_seconds is not None:
                heapq.heappush(waiting, (self._rank(number, found.outcome), number, done + 1))
            elif self._may_fit(found.outcome):
                heapq.heappush(waiting, (score, number, done + 1))
        return None

    def _may_fit(self, outcome: Outcome) -> bool:
        """Whether the compiler may accept what no estimate fits: it has the last word."""
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
        """Keeps as many tasks running as may, those of the least scores."""
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
        """Cancels what was started ahead."""
        for future in self._running:
            future.cancel()
