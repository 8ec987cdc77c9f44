"""Times programs on all devices of a mesh at once, as a step runs them.

Running on all devices includes the time that devices cost each other if they share cores, memory or
links. Each device has its own buffers. A time is the median of repetitions after a warm-up. Its
spread is half the interquartile range, divided by the median.

The cost of calling a program is subtracted. On CPUs this cost is the time of a program that
computes next to nothing. On other devices a call may take longer than a kernel, and overlaps with
the previous program. There the time of a function is the difference between two programs, one of
which computes the function twice as often as the other.
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
"""The number of untimed calls before the timings."""

_CHAIN, _CHAIN_SIZE = 256, 1024
"""The kernels of the shorter chain from which the launch cost is measured, and their elements."""

_LEAST_PART = 0.05
"""The least part of a measured time that remains after the cost of calling is subtracted. If less
remains, noise has hidden the time, and this part is used."""

_CALLS = 4
"""The least duration of a program, as a multiple of the cost of calling. The function of a shorter
program is repeated in it."""

_MOST_COPIES = 64
"""The number of repetitions of a function at which `_CALLS` is given up."""

_VALUES = np.random.default_rng(0).random(2**16)
"""The values that fill the floating-point buffers of CPU devices."""


@dataclass(frozen=True)
class Timing:
    """A measured time.

    - `seconds`: the median of the repetitions.
    - `spread`: half the interquartile range, divided by the median.
    """

    seconds: float
    spread: float


def measure(run: Callable[[], Any], repetitions: int, *, in_turn: bool = True) -> Timing:
    """Returns the median time of a call.

    - `run`: the call. It returns a result that jax can wait for.
    - `repetitions`: the number of timings. Each timing covers as many calls as fit into a
      millisecond, at least 1 and at most 100.
    - `in_turn`: whether each call starts only after the result of the previous call is ready.
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

    - `body`: takes the operands, and returns one array or a list of arrays.
    - `operands`: the `jax.ShapeDtypeStruct`s of one device's operands.
    - `result`: the types of the results, for a `body` that can be traced on a mesh only, such as a
      collective; None to trace `body`.
    """

    body: Callable[..., Any]
    operands: Sequence[Any]
    result: Any = None

    @property
    def found(self) -> Any:
        """The results of `body`, as `jax.ShapeDtypeStruct`s."""
        return self.result or jax.eval_shape(self.body, *self.operands)

    def times(self, count: int) -> "TimedFunction":
        """Returns a function that computes this one `count` times in sequence, and returns all
        results."""

        def body(*operands: Any) -> list[Any]:
            results = [self.body(*operands)]
            for _ in range(count - 1):
                # XLA would merge equal computations, and drop those whose results are unused.
                results[-1], operands = jax.lax.optimization_barrier((results[-1], operands))
                results.append(self.body(*operands))
            return results

        return replace(self, body=body, result=[self.found] * count)


@dataclass(frozen=True, eq=False)
class Bench:
    """The devices on which programs are timed, and the way to time them.

    - `mesh`: the jax mesh of the devices.
    - `repetitions`: the number of timings of each program. The median is kept.
    - `compiler_options`: the compiler options that plans run with.
    """

    mesh: Any
    repetitions: int
    compiler_options: Mapping[str, Any] | None = None

    @property
    def platform(self) -> str:
        """jax's name of the devices' platform, e.g. "cpu"."""
        return self.mesh.devices.flat[0].platform

    def time(self, function: TimedFunction) -> Timing:
        """Returns the time of a function that runs on all devices at once.

        The result overwrites an existing buffer. First access to fresh memory is slow, and a step
        allocates its memory once.

        **Raises:** jax's errors if the function does not compile or does not fit into memory.
        """
        if not self._in_turn:
            return self._without_calling(function)
        raw = self._call(function)
        net = max(raw.seconds - self._calling_seconds, _LEAST_PART * raw.seconds)
        seconds = net + self.launch_seconds
        return Timing(seconds, raw.spread * raw.seconds / seconds)

    def _without_calling(self, function: TimedFunction) -> Timing:
        """Returns the time of a function: the difference between the times of two programs. The
        second program computes the function twice as often as the first."""
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
        """The cost of one more kernel in a program, from two chains of trivial kernels."""

        def chain(count: int) -> Callable[[Any], Any]:
            def body(x: Any) -> Any:
                for _ in range(count):
                    # Without barriers XLA would fuse the chain into one kernel.
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
        # On a CPU device the next program may start while the previous one still runs.
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
        # `device_put` compiles no program. Random values keep a core from predicting the branches
        # that comparisons of equal values would take.
        if self._in_turn and jnp.issubdtype(local.dtype, jnp.floating):
            return jax.device_put(np.resize(_VALUES, shape).astype(local.dtype), sharding)
        return jnp.ones(shape, local.dtype, device=sharding)


def on_each_device(
    mesh: Any, function: TimedFunction, *, is_first_unused: bool = False
) -> Callable[..., Any]:
    """Returns the function over global arrays. Each device of a jax mesh has a part of every array.

    - `is_first_unused`: whether the function takes one more argument in front, with the type of the
      result, and ignores it. The result may then overwrite this argument.
    """
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
    """Returns the `PartitionSpec` that cuts the first dimension over all axes of a mesh. Scalars
    are replicated."""
    return PartitionSpec(tuple(mesh.axis_names)) if local.shape else PartitionSpec()


class Kind(enum.Enum):
    """The kind of a `Point`."""

    MATMUL = "matmul"
    OPERATOR = "operator"
    ELEMENTWISE = "elementwise"
    STREAM = "stream"
    COLLECTIVE = "collective"


UNMEASURED = (1.0, 0.0)
"""The seconds and the spread of an entry that is not measured yet."""


@dataclass(frozen=True, eq=False)
class Point:
    """One measurement.

    - `entry`: the entry of the profile table, with `UNMEASURED` in place of its time.
    - `kind`: the kind of the measurement.
    - `name`: a text for people.
    - `held_bytes`: the approximate bytes that the measurement needs on one device.
    - `functions`: the functions that are timed.
    - `combined`: returns the time of the entry from the times of `functions`.
    """

    entry: OperatorEntry | CollectiveEntry
    kind: Kind
    name: str
    held_bytes: int
    functions: tuple[TimedFunction, ...]
    combined: Callable[..., Timing] = field(default=lambda timing: timing)

    def time(self, bench: Bench) -> Timing:
        """Measures the point, and returns the time of its entry; raises as `Bench.time`."""
        return self.combined(*(bench.time(function) for function in self.functions))
