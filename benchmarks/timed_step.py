"""Training steps in sequence, and their times."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax


class Training:
    """Training steps in sequence: each step's first results replace its first arguments.

    `run(*leaves)` returns flat results, `count` of which replace the first leaves.
    """

    def __init__(self, run: Callable[..., Any], leaves: Sequence[Any], count: int) -> None:
        self._run, self._leaves, self._count = run, list(leaves), count

    def run(self, steps: int) -> float:
        """Runs this number of steps to the end of the last one, and returns the seconds of all."""
        started = time.perf_counter()
        for _ in range(steps):
            results = self._run(*self._leaves)
            self._leaves = [*results[: self._count], *self._leaves[self._count :]]
        jax.block_until_ready(results)
        return time.perf_counter() - started


def timed_step(run: Callable[..., Any], leaves: Sequence[Any], count: int) -> Callable[[], float]:
    """Returns a function that runs one step and returns its seconds. The first `count` leaves, the
    state, go from step to step."""
    training = Training(run, leaves, count)
    return lambda: training.run(1)
