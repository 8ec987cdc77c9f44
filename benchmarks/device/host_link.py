"""The bandwidth between the card and its host's pinned memory, and the share of a copy that is
hidden.

    python -m benchmarks.device.host_link --out=benchmarks/device/results/host_link.json

Measures each direction by size, both directions at once, and a copy beside computation: ten
matmuls, or memory traffic, in one program with a copy that neither reads. `hidden` is the share of
the copy's time by which the program is faster than computation and copy one after the other.
"""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags
from jax.sharding import SingleDeviceSharding

_OUT = flags.DEFINE_string("out", "benchmarks/device/results/host_link.json", "Where results go.")
_RUNS = 15
MIB = 2**20
SIZES = (1, 4, 16, 64, 256, 1024)
BESIDE_BYTES = 512 * MIB
_WIDTH = 8192


def main(_: list[str]) -> None:
    """Measures all parts, and writes the results after each one."""
    device = jax.devices()[0]
    links = {
        "to_host": SingleDeviceSharding(device, memory_kind="pinned_host"),
        "from_host": SingleDeviceSharding(device, memory_kind="device"),
    }
    results: dict[str, Any] = {"device": device.device_kind, "jax": jax.__version__, "copies": []}
    out = Path(_OUT.value)
    out.parent.mkdir(parents=True, exist_ok=True)

    def note(**row: Any) -> None:
        results["copies"].append(row)
        out.write_text(json.dumps(results, indent=1) + "\n")
        print(row, flush=True)

    given = {way: {size: _value(size * MIB, links, way) for size in SIZES} for way in links}
    for way, link in links.items():
        copied = jax.jit(lambda x, link=link: jax.device_put(x, link), out_shardings=link)
        for size, x in given[way].items():
            seconds = _seconds(copied, x)
            note(way=way, bytes=size * MIB, seconds=seconds, rate=size * MIB / seconds)
    pair = [_value(BESIDE_BYTES, links, way) for way in links]
    both = jax.jit(
        lambda *xs: [jax.device_put(x, link) for x, link in zip(xs, links.values(), strict=True)],
        out_shardings=list(links.values()),
    )
    note(way="both", bytes=BESIDE_BYTES, seconds=_seconds(both, *pair))
    copies_alone = {
        way: _seconds(jax.jit(lambda x, k=link: jax.device_put(x, k), out_shardings=link), x)
        for (way, link), x in zip(links.items(), pair, strict=True)
    }
    for work, (compute, operand) in _computing().items():
        alone = _seconds(jax.jit(compute), operand)
        for (way, link), x in zip(links.items(), pair, strict=True):
            beside = jax.jit(
                lambda x, a, k=link, c=compute: (jax.device_put(x, k), c(a)),
                out_shardings=(link, None),
            )
            seconds = _seconds(beside, x, operand)
            note(
                way=way,
                beside=work,
                seconds=seconds,
                computing_seconds=alone,
                copy_seconds=copies_alone[way],
                hidden=1 - (seconds - alone) / copies_alone[way],
            )


def _value(size_bytes: int, links: Any, way: str) -> jax.Array:
    source = links["from_host" if way == "to_host" else "to_host"]
    x = jax.random.normal(jax.random.key(1), (size_bytes // 4,), jnp.float32)
    return jax.block_until_ready(jax.device_put(x, source))


def _computing() -> dict[str, tuple[Callable[[Any], Any], Any]]:
    """Returns, by name, programs and their operands. Each program takes about as long as the copy
    beside it."""
    square = jax.random.normal(jax.random.key(2), (_WIDTH, _WIDTH), jnp.bfloat16)
    long = jax.random.normal(jax.random.key(3), (256 * MIB,), jnp.float32)

    def matmuls(a: jax.Array) -> jax.Array:
        x = a
        for _ in range(10):
            x = (x @ a) * 0.01
        return x

    def traffic(a: jax.Array) -> jax.Array:
        for _ in range(15):
            a = jax.lax.optimization_barrier(a * 1.0001)
        return a

    return {"matmuls": (matmuls, square), "traffic": (traffic, long)}


def _seconds(run: Callable[..., Any], *operands: Any) -> float:
    """Returns the median time of a run, after two warm-up runs."""
    seconds = []
    for k in range(_RUNS + 2):
        started = time.perf_counter()
        jax.block_until_ready(run(*operands))
        if k >= 2:
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


if __name__ == "__main__":
    app.run(main)
