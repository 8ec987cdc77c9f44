"""Step times and allocator peak of a compiled step on the attached device, and its kernels."""

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
"""So many steps are traced."""

TOGETHER = 4
"""So many steps are called before the last one is waited for, as training does: calls are queued
while the device computes."""


@dataclass(frozen=True)
class Measured:
    """Seconds of one step: of `runs` timings, of `TOGETHER` steps each, behind a warm-up.

    `peak_bytes` is the allocator's `peak_bytes_in_use` of the process so far, None where the
    device does not report it; what is measured in turn of its size has its own.
    """

    median_seconds: float
    fastest_seconds: float
    slowest_seconds: float
    runs: int
    peak_bytes: int | None


def measure(training: Training, *, runs: int) -> Measured:
    """Times steps."""
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
    """By instruction of the compiled program, seconds of a step on the device and how often it ran:
    means of some steps."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            training.run(TRACED)
        (path,) = Path(folder).rglob("*.xplane.pb")
        return kernels(jax.profiler.ProfileData.from_file(str(path)))


def kernels(profile: Any) -> dict[str, dict[str, float]]:
    """As `traced`, of a `jax.profiler.ProfileData`."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: {"seconds": 0.0, "count": 0.0})
    for name, nanoseconds in _events(profile):
        found[name]["seconds"] += nanoseconds * 1e-9 / TRACED
        found[name]["count"] += 1 / TRACED
    return dict(found)


def _events(profile: Any) -> Iterator[tuple[str, float]]:
    """What ran on the device's streams: the HLO instruction, else the kernel's own name."""
    for plane in profile.planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        for line in plane.lines:
            if line.name.startswith("Stream"):
                for event in line.events:
                    stats = dict(event.stats)
                    yield str(stats.get("hlo_op", event.name)), event.duration_ns
