"""Times programs on the devices of a mesh, all of them at once, as a step runs.

Devices that share cores, memory or links slow each other down. Every device has buffers of its
own. A figure is the median of repetitions after a warm-up; its spread is half the interquartile
range over the median. What it costs to call a program is taken off: on GPUs by calling again
before the device is done, elsewhere by timing a program that does next to nothing.
"""

import enum
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median, quantiles
from typing import Any

import jax
from jax import numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from kiwi.mesh.profile_entries import CollectiveEntry, OperatorEntry

_WARM_UP = 2
_CHAIN, _CHAIN_SIZE = 256, 1024
_LEAST_PART = 0.05
"""What is left at least of a call's time when the cost of calling is taken off."""


@dataclass(frozen=True)
class Timing:
    """Median seconds, and half the interquartile range over them."""

    seconds: float
    spread: float


def measure(run: Callable[[], Any], repetitions: int, *, in_turn: bool = True) -> Timing:
    """Times a call whose result jax can wait for; short ones are repeated more often.

    At most `repetitions` timings of about a millisecond or more are taken, each of as many calls
    as it takes; `in_turn` waits for each of these before the next.
    """
    once = 0.0
    for _ in range(_WARM_UP):
        started = time.perf_counter()
        jax.block_until_ready(run())
        once = time.perf_counter() - started
    calls = max(1, min(100, int(1e-3 / max(once, 1e-9))))
    found = []
    for _ in range(repetitions):
        started = time.perf_counter()
        for _ in range(calls):
            result = run()
            if in_turn:
                jax.block_until_ready(result)
        jax.block_until_ready(result)
        found.append((time.perf_counter() - started) / calls)
    middle = median(found)
    low, _, high = quantiles(found, n=4) if len(found) > 1 else (middle,) * 3
    return Timing(middle, (high - low) / 2 / middle)


@dataclass(frozen=True, eq=False)
class TimedFunction:
    """A function that runs on each device, as one kernel of a step.

    `operands` are `jax.ShapeDtypeStruct`s of what one device reads; `body` takes such arrays and
    returns one, a `result` where that takes the other devices to find out.
    """

    body: Callable[..., Any]
    operands: Sequence[Any]
    result: Any = None

    @property
    def found(self) -> Any:
        """What `body` returns, as `jax.ShapeDtypeStruct`."""
        return self.result or jax.eval_shape(self.body, *self.operands)


@dataclass(frozen=True, eq=False)
class Bench:
    """The devices that programs are timed on, and how.

    - `mesh`: a jax mesh; `repetitions`: timings of each program, of which the median is kept.
    - `compiler_options`: those that steps are compiled with.
    """

    mesh: Any
    repetitions: int
    compiler_options: Mapping[str, Any] | None = None

    @property
    def platform(self) -> str:
        """As jax calls it, for example "cpu"."""
        return self.mesh.devices.flat[0].platform

    def time(self, function: TimedFunction) -> Timing:
        """The time on each device, all at once.

        The result goes over a buffer that is there already: fresh memory is slow to touch, and a
        step allocates once.

        **Raises:** what jax raises if it does not compile or does not fit.
        """
        raw = self._call(function)
        net = max(raw.seconds - self._calling_seconds, _LEAST_PART * raw.seconds)
        seconds = net + self.launch_seconds
        return Timing(seconds, raw.spread * raw.seconds / seconds)

    @cached_property
    def launch_seconds(self) -> float:
        """What one more kernel costs a program: by how much a chain of trivial ones is longer."""

        def chain(count: int) -> Callable[[Any], Any]:
            def body(x: Any) -> Any:
                for _ in range(count):
                    # Fused they would be one kernel.
                    x = jax.lax.optimization_barrier(x + 1)
                return x

            return body

        one = [jax.ShapeDtypeStruct((_CHAIN_SIZE,), jnp.float32)]
        short, long = (self._call(TimedFunction(chain(n), one)).seconds for n in (1, 1 + _CHAIN))
        return max((long - short) / _CHAIN, _LEAST_PART * long / _CHAIN)

    @cached_property
    def _calling_seconds(self) -> float:
        """Of a program with one trivial kernel; nothing where calls are queued."""
        if not self._in_turn:
            return 0.0
        one = [jax.ShapeDtypeStruct((1,), jnp.float32)]
        return self._call(TimedFunction(lambda x: x + 1, one)).seconds

    @property
    def _in_turn(self) -> bool:
        # The next program of a CPU device may start while the last one runs, beside it.
        return self.platform == "cpu"

    def _call(self, function: TimedFunction) -> Timing:
        result = function.found
        run = self._jitted(function)
        over, *buffers = (self._buffer(s) for s in [result, *function.operands])

        def call() -> Any:
            nonlocal over
            over = run(over, *buffers)
            return over

        return measure(call, self.repetitions, in_turn=self._in_turn)

    def _jitted(self, function: TimedFunction) -> Any:
        mapped = on_each_device(self.mesh, function, is_first_unused=True)
        options = None if self.compiler_options is None else dict(self.compiler_options)
        return jax.jit(mapped, donate_argnums=0, keep_unused=True, compiler_options=options)

    def _buffer(self, local: Any) -> Any:
        shape = local.shape
        if shape:
            shape = (shape[0] * self.mesh.devices.size, *shape[1:])
        sharding = NamedSharding(self.mesh, spec_of(self.mesh, local))
        return jax.jit(lambda: jnp.ones(shape, local.dtype), out_shardings=sharding)()


def on_each_device(
    mesh: Any, function: TimedFunction, *, is_first_unused: bool = False
) -> Callable[..., Any]:
    """The function over whole arrays, of which each device of a jax mesh has a part of its own; if
    `is_first_unused`, with one argument more in front, of the shape of the result."""
    found, unused = function.found, int(is_first_unused)
    read = [found] * unused + list(function.operands)
    return jax.shard_map(
        lambda *local: function.body(*local[unused:]),
        mesh=mesh,
        in_specs=tuple(spec_of(mesh, s) for s in read),
        out_specs=spec_of(mesh, found),
        check_vma=False,
    )


def spec_of(mesh: Any, local: Any) -> Any:
    """Every device has its own part of the first dimension; scalars are alike on all."""
    return PartitionSpec(tuple(mesh.axis_names)) if local.shape else PartitionSpec()


class Kind(enum.Enum):
    """What a `Point` times."""

    MATMUL = "matmul"
    OPERATOR = "operator"
    ELEMENTWISE = "elementwise"
    STREAM = "stream"
    COLLECTIVE = "collective"


UNMEASURED = (1.0, 0.0)
"""Stands for the seconds and the spread of an entry until it is measured."""


@dataclass(frozen=True, eq=False)
class Point:
    """One thing to measure.

    - `entry`: what a table is to have of it, but for its time; `kind`: what that is.
    - `name`: for people. `held_bytes`: what one device holds for it, about.
    - `functions`: what is timed for it. `combined`: its time, given theirs.
    """

    entry: OperatorEntry | CollectiveEntry
    kind: Kind
    name: str
    held_bytes: int
    functions: tuple[TimedFunction, ...]
    combined: Callable[..., Timing] = field(default=lambda timing: timing)

    def time(self, bench: Bench) -> Timing:
        """Measures it; raises as `Bench.time`."""
        return self.combined(*(bench.time(each) for each in self.functions))
