"""Median step time and allocator peak of a compiled step on the attached device."""

import statistics
import time
from dataclasses import dataclass
from typing import Any

import jax

from benchmarks.device.variants import Runnable


@dataclass(frozen=True)
class Measured:
    """Of `runs` steps behind `warm_up` others.

    `peak_bytes` is the allocator's `peak_bytes_in_use` of the process so far, None where the
    device does not report it; a process that measures one variant gives that variant's peak.
    """

    median_seconds: float
    fastest_seconds: float
    slowest_seconds: float
    runs: int
    peak_bytes: int | None


def measure(runnable: Runnable, leaves: list[Any], *, runs: int, warm_up: int) -> Measured:
    """Runs the step again and again on its own results; `leaves` are donated."""
    seconds = []
    for run in range(warm_up + runs):
        started = time.perf_counter()
        results = jax.block_until_ready(runnable.run(*leaves))
        if run >= warm_up:
            seconds.append(time.perf_counter() - started)
        leaves = [*results[: runnable.result_count], *leaves[runnable.result_count :]]
    stats = jax.devices()[0].memory_stats() or {}
    return Measured(
        statistics.median(seconds),
        min(seconds),
        max(seconds),
        runs,
        stats.get("peak_bytes_in_use"),
    )
