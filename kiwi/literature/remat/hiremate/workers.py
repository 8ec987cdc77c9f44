"""Worker processes that solve clusters.

A worker is `python -m kiwi.literature.remat.hiremate.workers`. It reads pickled (problem, seconds)
and writes pickled answers until its input ends. Pools of the standard library are not used, because
they import the caller's main module again, or fork a process with threads.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, cast

from kiwi.literature.remat.hiremate.part_solver import Options, PartProblem, solve_part

Worker = subprocess.Popen[bytes]


class Pool:
    """At most `count` worker processes, `started` when first needed.

    There are none if `count` is 0 or 1.
    """

    def __init__(self, count: int) -> None:
        self._count = count if count > 1 else 0
        self.started: list[Worker] = []

    def solve(
        self, problems: Sequence[PartProblem], seconds: float, parallel: int = 2
    ) -> list[tuple[Options, bool]]:
        """Returns `solve_part` of each problem, in order, with `seconds` for each.

        The problems are solved in this process if `parallel` is below 2 or fewer than two of them
        have parts.
        """
        large = sum(bool(problem.cluster.children) for problem in problems)
        if not self._count or parallel < 2 or large < 2:
            return [solve_part(problem, seconds) for problem in problems]
        while len(self.started) < min(self._count, len(problems)):
            self.started.append(_start())
        idle = list(self.started)
        with ThreadPoolExecutor(len(idle)) as threads:
            return list(threads.map(lambda problem: _ask(idle, problem, seconds), problems))

    def close(self) -> None:
        """Ends the workers by ending their input."""
        for worker in self.started:
            worker.communicate()
        self.started.clear()


def _start() -> Worker:
    command = [sys.executable, "-m", "kiwi.literature.remat.hiremate.workers"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _ask(idle: list[Worker], problem: PartProblem, seconds: float) -> tuple[Options, bool]:
    """Returns a worker's answer. If the worker has died, the problem is solved in this process."""
    worker = idle.pop()  # there is a worker for each thread
    to, back = cast(BinaryIO, worker.stdin), cast(BinaryIO, worker.stdout)
    try:
        pickle.dump((problem, seconds), to)
        to.flush()
        return pickle.load(back)
    except (BrokenPipeError, EOFError):
        return solve_part(problem, seconds)
    finally:
        idle.append(worker)


def main() -> None:
    """Answers one problem after the other."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a solver's output must not mix with answers
    while True:
        try:
            problem, seconds = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(solve_part(problem, seconds), answers)
        answers.flush()


if __name__ == "__main__":
    main()
