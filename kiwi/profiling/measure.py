"""Times programs on all devices of a mesh at once, as a step runs.

Devices that share cores, memory or links slow each other down. Every device has buffers of its own.
A figure is the median of repetitions after a warm-up, and its spread is half the interquartile
range over the median.

The cost of calling a program is subtracted. On CPUs that is the time of a program that does next to
nothing. On other devices a call may take longer than a kernel, while the next call need not wait
for its end. So the program is compared with one that computes the same half as often.
"""

import enum
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median, quantiles
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from kiwi.mesh.profile_entries import CollectiveEntry, OperatorEntry

_WARM_UP = 2
_CHAIN, _CHAIN_SIZE = 256, 1024
_LEAST_PART = 0.05
"""At least this part of a call's time is left when the cost of calling is subtracted."""
_CALLS = 4
"""A program has to be longer than so many calls, so that its time is not that of calling it."""
_MOST_COPIES = 64
_VALUES = np.random.default_rng(0).random(2**16)


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
    seconds = []
    for _ in range(repetitions):
        started = time.perf_counter()
        for _ in range(calls):
            result = run()
            if in_turn:
                jax.block_until_ready(result)
        jax.block_until_ready(result)
        seconds.append((time.perf_counter() - started) / calls)
    middle = median(seconds)
    low, _, high = quantiles(seconds, n=4) if len(seconds) > 1 else (middle,) * 3
    return Timing(middle, (high - low) / 2 / middle)


@dataclass(frozen=True, eq=False)
class TimedFunction:
    """A function that runs on each device, as one kernel of a step.

    `operands` are `jax.ShapeDtypeStruct`s of one device's operands. `body` takes such arrays and
    returns one or a list; `result` gives their types if finding them out takes the other devices.
    """

    body: Callable[..., Any]
    operands: Sequence[Any]
    result: Any = None

    @property
    def found(self) -> Any:
        """The results of `body`, as `jax.ShapeDtypeStruct`s."""
        return self.result or jax.eval_shape(self.body, *self.operands)

    def times(self, count: int) -> "TimedFunction":
        """The function computed so many times in a row. It returns all results."""

        def body(*operands: Any) -> list[Any]:
            results = [self.body(*operands)]
            for _ in range(count - 1):
                # All alike, they would be one kernel, and so they would if one result were read.
                results[-1], operands = jax.lax.optimization_barrier((results[-1], operands))
                results.append(self.body(*operands))
            return results

        return replace(self, body=body, result=[self.found] * count)


@dataclass(frozen=True, eq=False)
class Bench:
    """The devices on which programs are timed, and how.

    - `mesh`: a jax mesh. `repetitions`: timings of each program, of which the median is kept.
    - `compiler_options`: those of compiled steps.
    """

    mesh: Any
    repetitions: int
    compiler_options: Mapping[str, Any] | None = None

    @property
    def platform(self) -> str:
        """jax's name of the platform, for example "cpu"."""
        return self.mesh.devices.flat[0].platform

    def time(self, function: TimedFunction) -> Timing:
        """The time on each device, all at once.

        The result overwrites an existing buffer: fresh memory is slow to touch, and a step
        allocates once.

        **Raises:** jax's errors if it does not compile or does not fit.
        """
        if not self._in_turn:
            return self._without_calling(function)
        raw = self._call(function)
        net = max(raw.seconds - self._calling_seconds, _LEAST_PART * raw.seconds)
        seconds = net + self.launch_seconds
        return Timing(seconds, raw.spread * raw.seconds / seconds)

    def _without_calling(self, function: TimedFunction) -> Timing:
        """The extra time of a program in which the function is computed twice as often."""
        copies, once = 1, self._call(function)
        while once.seconds < _CALLS * self._calling_seconds and copies < _MOST_COPIES:
            copies *= 4
            once = self._call(function.times(copies))
        twice = self._call(function.times(2 * copies))
        longer = max(twice.seconds - once.seconds, _LEAST_PART * twice.seconds)
        spread = (once.spread * once.seconds + twice.spread * twice.seconds) / longer
        return Timing(longer / copies, spread)

    @cached_property
    def launch_seconds(self) -> float:
        """The cost of one more kernel in a program: the extra time of a chain of trivial ones."""

        def chain(count: int) -> Callable[[Any], Any]:
            def body(x: Any) -> Any:
                for _ in range(count):
                    # Fused they would be one kernel.
                    x = jax.lax.optimization_barrier(x + 1)
                return x

            return body

        one = [jax.ShapeDtypeStruct((_CHAIN_SIZE,), jnp.float32)]
        lengths = _CHAIN, 2 * _CHAIN
        short, long = (self._call(TimedFunction(chain(n), one)).seconds for n in lengths)
        return max((long - short) / _CHAIN, _LEAST_PART * long / _CHAIN)

    @cached_property
    def _calling_seconds(self) -> float:
        """The time of a program with one trivial kernel."""
        one = [jax.ShapeDtypeStruct((1,), jnp.float32)]
        return self._call(TimedFunction(lambda x: x + 1, one)).seconds

    @property
    def _in_turn(self) -> bool:
        # The next program of a CPU device may start while the last one runs, beside it.
        return self.platform == "cpu"

    def _call(self, function: TimedFunction) -> Timing:
        result = function.found
        run = self._jitted(function)
        overwritten = jax.tree.map(self._buffer, result)
        buffers = [self._buffer(operand) for operand in function.operands]

        def call() -> Any:
            nonlocal overwritten
            overwritten = run(overwritten, *buffers)
            return overwritten

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
        # Nothing is compiled for it alone. A core foresees what comparing equal values leads to.
        if self._in_turn and jnp.issubdtype(local.dtype, jnp.floating):
            return jax.device_put(np.resize(_VALUES, shape).astype(local.dtype), sharding)
        return jnp.ones(shape, local.dtype, device=sharding)


def on_each_device(
    mesh: Any, function: TimedFunction, *, is_first_unused: bool = False
) -> Callable[..., Any]:
    """The function over whole arrays, of which each device of a jax mesh has a part. With
    `is_first_unused` it has one more argument in front, with the shape of the result."""
    result, unused = function.found, int(is_first_unused)
    read = [result] * unused + list(function.operands)
    return jax.shard_map(
        lambda *local: function.body(*local[unused:]),
        mesh=mesh,
        in_specs=tuple(jax.tree.map(lambda leaf: spec_of(mesh, leaf), tree) for tree in read),
        out_specs=jax.tree.map(lambda leaf: spec_of(mesh, leaf), result),
        check_vma=False,
    )


def spec_of(mesh: Any, local: Any) -> Any:
    """Every device has its own part of the first dimension; scalars are alike on all."""
    return PartitionSpec(tuple(mesh.axis_names)) if local.shape else PartitionSpec()


class Kind(enum.Enum):
    """The kind of a `Point`."""

    MATMUL = "matmul"
    OPERATOR = "operator"
    ELEMENTWISE = "elementwise"
    STREAM = "stream"
    COLLECTIVE = "collective"


UNMEASURED = (1.0, 0.0)
"""Stands for the seconds and the spread of an entry until it is measured."""


@dataclass(frozen=True, eq=False)
class Point:
    """One measurement.

    - `entry`: the table's entry for it, without its time. `kind`: the kind of the entry.
    - `name`: for people. `held_bytes`: roughly the memory of one device for it.
    - `functions`: the functions that are timed for it. `combined`: its time, given theirs.
    """

    entry: OperatorEntry | CollectiveEntry
    kind: Kind
    name: str
    held_bytes: int
    functions: tuple[TimedFunction, ...]
    combined: Callable[..., Timing] = field(default=lambda timing: timing)

    def time(self, bench: Bench) -> Timing:
        """Measures it; raises as `Bench.time`."""
        return self.combined(*(bench.time(function) for function in self.functions))
