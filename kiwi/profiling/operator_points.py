"""What is measured of one device: library calls, elementwise functions, memory traffic.

- An *operator* is run as a step runs it, in the shapes of one device.
- An *elementwise* function costs what a kernel takes longer with it than without: reading and
  writing are not part of it.
- A *stream* reads one buffer and writes another: memory traffic, by bytes, since small buffers
  stay in caches.

Elementwise functions and streams are `OperatorEntry`s too, see `kiwi.mesh.profile_table`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kiwi.mesh.profile_entries import ELEMENTWISE, STREAM, STREAM_DTYPE, OperatorEntry, Shapes
from kiwi.mesh.profile_table import ProfileTable
from kiwi.profiling.measure import Bench, Timing

STREAM_BYTES = tuple(2**k for k in range(14, 29, 2))
"""Bytes read plus written, from 16 KiB to 256 MiB."""

ELEMENTWISE_SIZES = (2**14, 2**17, 2**20)
"""Elements of one device. XLA:CPU computes few of them by one thread, and many by several."""

_STEPS = 8
_LEAST_PART = 1e-4


@dataclass(frozen=True, eq=False)
class OperatorPoint:
    """A library call or reduction, in the local shapes of some strategy.

    - `opcode`, `variant`, `dtype`, `shapes`, `flops`, `bytes`: as in `OperatorEntry`.
    - `dtypes`: of each operand. `run`: takes arrays of these shapes.
    - `beside`: what else `run` reads, which a step reads with it in the same kernel.
    """

    opcode: str
    variant: str
    dtype: str
    shapes: Shapes
    flops: float
    bytes: int
    dtypes: tuple[Any, ...]
    run: Callable[..., Any]
    beside: tuple[Any, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """What the table knows it by."""
        return self.opcode, self.variant, self.dtype, self.shapes

    @property
    def name(self) -> str:
        """For people."""
        shapes = " ".join("x".join(map(str, shape)) or "scalar" for shape in self.shapes)
        return f"{self.opcode} {self.dtype} {shapes}"

    def measure(self, bench: Bench) -> Timing:
        """Times it; raises as `Bench.time`."""
        return bench.time(self.run, [*_operands(self.shapes, self.dtypes), *self.beside])

    def added_to(self, table: ProfileTable, timing: Timing) -> ProfileTable:
        """The table with this as a further entry."""
        known = (self.opcode, self.variant, self.dtype, self.shapes)
        entry = OperatorEntry(*known, self.flops, self.bytes, timing.seconds, timing.spread)
        return table.with_operator(entry)


@dataclass(frozen=True, eq=False)
class ElementwisePoint:
    """A function that maps the elements of one array, on `size` of them; None for arithmetic."""

    opcode: str
    dtype: str
    size: int
    run: Callable[[Any], Any] | None

    @property
    def key(self) -> tuple[str, str, str, Shapes]:
        """What the table knows it by."""
        return self.opcode, ELEMENTWISE, self.dtype, ((self.size,),)

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.opcode} of {self.size} {self.dtype}"

    @property
    def bytes(self) -> int:
        """A buffer read and one written, at most 16 bytes an element."""
        return 16 * self.size

    def measure(self, bench: Bench) -> Timing:
        """The time that it adds to a kernel; raises as `Bench.time`."""
        if self.run is None:
            less, more = self._kernel(bench, 1), self._kernel(bench, 1 + _STEPS)
            # A step is a multiplication and an addition.
            added = (more.seconds - less.seconds) / (2 * _STEPS)
        else:
            less, more = self._kernel(bench, 1), self._kernel(bench, 1, self.run)
            added = more.seconds - less.seconds
        # A difference lost in noise still is no time that anything takes.
        return Timing(max(added, _LEAST_PART * more.seconds), more.spread)

    def added_to(self, table: ProfileTable, timing: Timing) -> ProfileTable:
        """The table with this as a further entry."""
        entry = OperatorEntry(*self.key, float(self.size), 0, timing.seconds, timing.spread)
        return table.with_operator(entry)

    def _kernel(
        self, bench: Bench, steps: int, function: Callable[[Any], Any] = lambda x: x
    ) -> Timing:
        """Reads and writes a buffer, with so many steps of arithmetic behind `function`.

        One application only: of a chain of functions XLA:CPU makes code that is many times slower.
        """

        def body(x: Any) -> Any:
            x = function(x)
            for _ in range(steps):
                x = x * x.dtype.type(0.125) + x.dtype.type(0.5)
            return x

        return bench.time(body, _operands(((self.size,),), (self.dtype,)))


@dataclass(frozen=True)
class StreamPoint:
    """Memory traffic of `bytes`, half of them read and half of them written."""

    bytes: int

    @property
    def key(self) -> tuple[str, str, str, Shapes]:
        """What the table knows it by."""
        return STREAM, "", STREAM_DTYPE, ((self.bytes,),)

    @property
    def name(self) -> str:
        """For people."""
        return f"memory traffic of {self.bytes} bytes"

    def measure(self, bench: Bench) -> Timing:
        """Times it; raises as `Bench.time`."""
        operands = _operands(((self.bytes // 8,),), ("float32",))
        return bench.time(lambda x: x * 2, operands)

    def added_to(self, table: ProfileTable, timing: Timing) -> ProfileTable:
        """The table with this as a further entry."""
        entry = OperatorEntry(*self.key, 0.0, self.bytes, timing.seconds, timing.spread)
        return table.with_operator(entry)


def matmul_flops_per_second(bench: Bench, dtype: str, size: int) -> float:
    """The rate of a square matmul of `size` on each device."""
    operands = _operands(((size, size), (size, size)), (dtype, dtype))
    return 2.0 * size**3 / bench.time(lambda x, y: x @ y, operands).seconds


def _operands(shapes: Shapes, dtypes: Sequence[Any]) -> list[Any]:
    import jax

    return [jax.ShapeDtypeStruct(s, d) for s, d in zip(shapes, dtypes, strict=True)]
