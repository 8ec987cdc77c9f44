"""Step times, allocator peak and kernels of a compiled step on the attached device."""

import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from benchmarks.timed_step import Training

TRACED = 3
"""The number of traced steps."""

TOGETHER = 4
"""The number of steps that are called before the last one is waited for. As in training, calls are
queued while the device computes."""


@dataclass(frozen=True)
class Measured:
    """Seconds of one step, from `runs` timings of `TOGETHER` steps each, after a warm-up.

    `peak_bytes` is the allocator's `peak_bytes_in_use` for the process so far, and None if the
    device does not report it. It is a variant's own peak if the variants of a process run in order
    of size.
    """

    median_seconds: float
    fastest_seconds: float
    slowest_seconds: float
    runs: int
    peak_bytes: int | None


def measure(training: Training, *, runs: int) -> Measured:
    """Times `runs` runs of the training."""
    training.run(TOGETHER)
    seconds = [training.run(TOGETHER) / TOGETHER for _ in range(runs)]
    stats = jax.devices()[0].memory_stats() or {}
    return Measured(
        statistics.median(seconds),
        min(seconds),
        max(seconds),
        runs,
        stats.get("peak_bytes_in_use"),
    )


def traced(training: Training) -> dict[str, dict[str, float]]:
    """Returns, for each instruction of the compiled program, its seconds in one step and its number
    of runs: means over `TRACED` steps."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            training.run(TRACED)
        (path,) = Path(folder).rglob("*.xplane.pb")
        return kernels(jax.profiler.ProfileData.from_file(str(path)))


def kernels(profile: Any) -> dict[str, dict[str, float]]:
    """Returns the result of `traced` for a `jax.profiler.ProfileData`."""
    totals: dict[str, dict[str, float]] = defaultdict(lambda: {"seconds": 0.0, "count": 0.0})
    for name, nanoseconds in _events(profile):
        totals[name]["seconds"] += nanoseconds * 1e-9 / TRACED
        totals[name]["count"] += 1 / TRACED
    return dict(totals)


def _events(profile: Any) -> Iterator[tuple[str, float]]:
    """Yields the name and the nanoseconds of each event on the device's streams. The name is the
    HLO instruction if known, otherwise the kernel."""
    for plane in profile.planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        for line in plane.lines:
            if line.name.startswith("Stream"):
                for event in line.events:
                    stats = dict(event.stats)
                    yield str(stats.get("hlo_op", event.name)), event.duration_ns
