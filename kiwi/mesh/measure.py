"""Times programs on attached devices: kernels, memory, launches and collectives.

Every figure is the median of repetitions after a warm-up; its spread is half the interquartile
range over the median.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod
from statistics import median, quantiles
from typing import Any

from kiwi.mesh.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    COLLECTIVE_PERMUTE,
    KINDS,
    REDUCE_SCATTER,
)

WARM_UP = 2
_ITEM_BYTES = 4  # of float32, which collectives are measured on
_BANDWIDTH_BYTES = 2**26


@dataclass(frozen=True)
class Timing:
    """Median seconds, and half the interquartile range over them."""

    seconds: float
    spread: float


def measure(run: Callable[[], Any], repetitions: int) -> Timing:
    """Times a call whose result jax can wait for; short ones are repeated more often.

    At most `repetitions` timings of about a millisecond or more are taken, each of as many calls
    as it takes.
    """
    import jax

    started = time.perf_counter()
    for _ in range(WARM_UP):
        jax.block_until_ready(run())
        started, once = time.perf_counter(), time.perf_counter() - started
    calls = max(1, min(100, int(1e-3 / max(once, 1e-9))))
    found = []
    for _ in range(repetitions):
        started = time.perf_counter()
        for _ in range(calls):
            jax.block_until_ready(run())
        found.append((time.perf_counter() - started) / calls)
    middle = median(found)
    low, _, high = quantiles(found, n=4) if len(found) > 1 else (middle,) * 3
    return Timing(middle, (high - low) / 2 / middle)


def launch_seconds(device: Any, repetitions: int) -> Timing:
    """The time of a program that adds one number to another."""
    import jax
    import jax.numpy as jnp

    one = jax.device_put(jnp.float32(1), device)
    add = jax.jit(lambda x: x + 1)
    return measure(lambda: add(one), repetitions)


def memory_bytes_per_second(device: Any, repetitions: int) -> float:
    """The rate at which an elementwise program reads plus writes."""
    import jax
    import jax.numpy as jnp

    count = _BANDWIDTH_BYTES // _ITEM_BYTES
    buffer = jax.device_put(jnp.ones(count, jnp.float32), device)
    double = jax.jit(lambda x: x * 2)
    return 2 * _BANDWIDTH_BYTES / measure(lambda: double(buffer), repetitions).seconds


def matmul_flops_per_second(device: Any, dtype: str, size: int, repetitions: int) -> float:
    """The rate of a square matmul of `size`."""
    import jax
    import jax.numpy as jnp

    side = jax.device_put(jnp.ones((size, size), dtype), device)
    run = jax.jit(lambda x: x @ x)
    return 2.0 * size**3 / measure(lambda: run(side), repetitions).seconds


@dataclass(frozen=True)
class CollectivePoint:
    """What to measure of one collective: kind, mesh axes, and bytes as in `CollectiveEntry`."""

    kind: str
    axes: tuple[int, ...]
    devices: int
    bytes: int


def collective_points(
    mesh_shape: Sequence[int], sizes_bytes: Sequence[int]
) -> Iterator[CollectivePoint]:
    """Every kind over every set of mesh axes, one set for each number of devices.

    Of sets with as many devices the first is taken, which has the most major axes: where links
    differ, those of major axes are the slower.
    """
    axes_of: dict[int, tuple[int, ...]] = {}
    large = [axis for axis, size in enumerate(mesh_shape) if size > 1]
    for count in range(1, len(large) + 1):
        for axes in combinations(large, count):
            axes_of.setdefault(prod(mesh_shape[a] for a in axes), axes)
    for devices, axes in axes_of.items():
        for kind in KINDS:
            for size in sizes_bytes:
                # Buffers are cut into equal parts of whole items.
                part = devices * _ITEM_BYTES
                yield CollectivePoint(kind, axes, devices, max(1, size // part) * part)


def collective_seconds(mesh: Any, point: CollectivePoint, repetitions: int) -> Timing:
    """Times one collective over axes of a jax mesh, in all groups of devices at once."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    names = tuple(mesh.axis_names[a] for a in point.axes)
    count = point.bytes // _ITEM_BYTES
    if point.kind == ALL_GATHER:
        count //= point.devices
    # Every device has a buffer of its own: the first dimension is cut over all axes.
    spec = PartitionSpec(tuple(mesh.axis_names))
    total = np.ones(mesh.devices.size * count, np.float32)
    buffer = jax.device_put(total, NamedSharding(mesh, spec))
    body = _body(point.kind, names, point.devices)
    mapped = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    run = jax.jit(mapped)
    return measure(lambda: run(buffer), repetitions)


def _body(kind: str, names: tuple[str, ...], devices: int) -> Callable[[Any], Any]:
    from jax import lax

    ring = [(k, (k + 1) % devices) for k in range(devices)]
    bodies: dict[str, Callable[[Any], Any]] = {
        ALL_GATHER: lambda x: lax.all_gather(x, names, tiled=True),
        ALL_REDUCE: lambda x: lax.psum(x, names),
        REDUCE_SCATTER: lambda x: lax.psum_scatter(x, names, tiled=True),
        ALL_TO_ALL: lambda x: lax.all_to_all(x, names, 0, 0, tiled=True),
        COLLECTIVE_PERMUTE: lambda x: lax.ppermute(x, names, ring),
    }
    return bodies[kind]
