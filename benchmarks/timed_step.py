"""Steps of training, one after the other, and their times."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax


class Training:
    """Steps one after the other: each one's first results replace the first arguments.

    `run(*leaves)` returns flat results, `count` of which replace the first leaves.
    """

    def __init__(self, run: Callable[..., Any], leaves: Sequence[Any], count: int) -> None:
        self._run, self._leaves, self._count = run, list(leaves), count

    def run(self, steps: int) -> float:
        """So many steps, to the end of the last one; returns the seconds of all."""
        started = time.perf_counter()
        for _ in range(steps):
            results = self._run(*self._leaves)
            self._leaves = [*results[: self._count], *self._leaves[self._count :]]
        jax.block_until_ready(results)
        return time.perf_counter() - started


def timed_step(run: Callable[..., Any], leaves: Sequence[Any], count: int) -> Callable[[], float]:
    """A function that runs one step and returns its seconds; its first `count` leaves, the state,
    go from step to step."""
    training = Training(run, leaves, count)
    return lambda: training.run(1)
