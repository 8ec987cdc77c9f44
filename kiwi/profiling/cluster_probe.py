"""Measures how fast attached devices send to each other.

Each pair of devices swaps a small buffer, and then a large one, while all other devices are idle.
Both directions run at once, as in a ring. The latency is the median time of the small buffer. The
bandwidth is the difference of the two sizes, divided by the difference of the two times. One
process must see all devices. A swap between virtual CPU devices is a copy in memory.
"""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from kiwi.errors import ClusterError
from kiwi.mesh.assignment import Cluster
from kiwi.messages import topics
from kiwi.profiling.measure import measure

_SMALL_BYTES = 2**10
"""The size of the small buffer, from which the latency is measured."""


def measure_cluster(
    devices: Sequence[Any] | None = None,
    *,
    large_bytes: int = 2**24,
    repetitions: int = 9,
    on_pair: Callable[[], None] = lambda: None,
) -> Cluster:
    """Measures the latency and the bandwidth between each pair of devices.

    - `devices`: the devices; None for all of `jax.devices()`.
    - `large_bytes`: the size of the large buffer.
    - `repetitions`: the number of timings of each buffer.
    - `on_pair`: called after each pair.

    Returns the symmetric matrices of latencies (seconds) and bandwidths (bytes per second).

    **Raises:** `ClusterError` for fewer than two devices, for `large_bytes` of at most a KiB, or
    for fewer than one repetition.
    """
    devices = jax.devices() if devices is None else list(devices)
    if len(devices) < 2 or large_bytes <= _SMALL_BYTES or repetitions < 1:
        raise ClusterError(
            f"Nothing to measure: {len(devices)} devices, {large_bytes} bytes, {repetitions} "
            "repetitions.",
            topic=topics.NOTHING_TO_MEASURE,
        )
    latency_seconds, bandwidth = np.zeros((2, len(devices), len(devices)))
    for i, j in combinations(range(len(devices)), 2):
        pair = [devices[i], devices[j]]
        small = _swap_seconds(pair, _SMALL_BYTES, repetitions)
        large = _swap_seconds(pair, large_bytes, repetitions)
        # On a noisy machine the large buffer may seem to take no longer than the small one.
        growth = large - small if large > small else large
        latency_seconds[i, j] = latency_seconds[j, i] = small
        bandwidth[i, j] = bandwidth[j, i] = (large_bytes - _SMALL_BYTES) / growth
        on_pair()
    return Cluster(tuple(map(str, devices)), latency_seconds, bandwidth)


def _swap_seconds(pair: Sequence[Any], size_bytes: int, repetitions: int) -> float:
    """Returns the median seconds in which two devices swap buffers of `size_bytes`."""
    mesh = Mesh(np.array(pair, dtype=object), ("pair",))
    spec = PartitionSpec("pair")

    def swap(block: jax.Array) -> jax.Array:
        return jax.lax.ppermute(block, "pair", [(0, 1), (1, 0)])

    run = jax.jit(jax.shard_map(swap, mesh=mesh, in_specs=spec, out_specs=spec))
    buffer = jax.device_put(np.zeros(2 * size_bytes, np.uint8), NamedSharding(mesh, spec))
    return measure(lambda: run(buffer), repetitions).seconds
