"""Clusters solved in processes of their own, `python -m kiwi.solver.remat.hiremate.workers` each.

A process reads pickled (problem, seconds) and writes pickled answers until its input ends.

(A process pool of the standard library would import the caller's main module again, or fork a
process that has threads.)
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import BinaryIO, cast

from kiwi.solver.remat.hiremate.part_solver import Options, PartProblem, solve_part


class Pool:
    """At most `count` worker processes, started when first needed; none for 0 or 1.

    To be closed at the end.
    """

    def __init__(self, count: int) -> None:
        self._count = count if count > 1 else 0
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def runs(self) -> bool:
        """Whether processes were started."""
        return bool(self._started)

    def solve(
        self, problems: Sequence[PartProblem], seconds: float, parallel: int = 2
    ) -> list[Options]:
        """`solve_part` of each problem, in order; `seconds` for each; here if not `parallel`."""
        large = sum(bool(p.cluster.children) for p in problems)
        if not self._count or parallel < 2 or large < 2:
            return [solve_part(problem, seconds) for problem in problems]
        while len(self._started) < min(self._count, len(problems)):
            worker = _start()
            self._started.append(worker)
            self._idle.put(worker)

        def ask(problem: PartProblem) -> Options:
            worker = self._idle.get()
            try:
                return _ask(worker, problem, seconds)
            finally:
                self._idle.put(worker)

        with ThreadPoolExecutor(len(self._started)) as threads:
            return list(threads.map(ask, problems))

    def close(self) -> None:
        """Ends the workers: their input ends."""
        for worker in self._started:
            worker.communicate()
        self._started.clear()


def _start() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "kiwi.solver.remat.hiremate.workers"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _ask(worker: subprocess.Popen[bytes], problem: PartProblem, seconds: float) -> Options:
    """A worker that died solves nothing more: the answer is then found here."""
    to, back = cast(BinaryIO, worker.stdin), cast(BinaryIO, worker.stdout)
    try:
        pickle.dump((problem, seconds), to)
        to.flush()
        return pickle.load(back)
    except (BrokenPipeError, EOFError):
        return solve_part(problem, seconds)


def main() -> None:
    """Answers one problem after the other."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a solver prints must not mix with answers
    while True:
        try:
            problem, seconds = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(solve_part(problem, seconds), answers)
        answers.flush()


if __name__ == "__main__":
    main()
