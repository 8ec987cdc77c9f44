"""Steps of training, timed one by one."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax


def timed_step(run: Callable[..., Any], leaves: Sequence[Any], count: int) -> Callable[[], float]:
    """A function that runs one step and returns its seconds; its first `count` leaves, the state,
    go from step to step."""
    given = list(leaves)

    def step() -> float:
        nonlocal given
        started = time.perf_counter()
        results = jax.block_until_ready(run(*given))
        seconds = time.perf_counter() - started
        given = [*results[:count], *given[count:]]
        return seconds

    return step
