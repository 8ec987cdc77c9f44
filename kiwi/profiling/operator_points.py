"""What is measured of one device: library calls, elementwise functions, memory traffic.

- An *operator* is run as a step runs it, in the shapes of one device.
- An *elementwise* function costs what a kernel takes longer with it than without: reading and
  writing are not part of it.
- A *stream* reads one buffer and writes another: memory traffic, by bytes, since small buffers
  stay in caches.

All are `OperatorEntry`s of a table, see `kiwi.mesh.profile_table`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from kiwi.mesh.profile_entries import ELEMENTWISE, STREAM, STREAM_DTYPE, OperatorEntry, Shapes
from kiwi.profiling.measure import UNMEASURED, Bench, Point, Timing

STREAM_BYTES = tuple(2**k for k in range(14, 29, 2))
"""Bytes read plus written, from 16 KiB to 256 MiB."""

ELEMENTWISE_SIZES = (2**14, 2**17, 2**20)
"""Elements of one device. XLA:CPU computes few of them by one thread, and many by several."""

_STEPS = 8
_LEAST_PART = 1e-4


def operator_point(
    entry: OperatorEntry, dtypes: Sequence[Any], run: Callable[..., Any], beside: Sequence[Any] = ()
) -> Point:
    """A library call or reduction, in the local shapes of some strategy.

    - `dtypes`: of each operand. `run`: takes arrays of these and of the entry's shapes.
    - `beside`: what else `run` reads, which a step reads with it in the same kernel.
    """
    operands = [*_operands(entry.shapes, dtypes), *beside]
    shapes = " ".join("x".join(map(str, shape)) or "scalar" for shape in entry.shapes)
    name = f"{entry.opcode} {entry.dtype} {shapes}"
    return Point(entry, name, entry.bytes, lambda bench: bench.time(run, operands))


def elementwise_point(
    opcode: str, dtype: str, size: int, run: Callable[[Any], Any] | None
) -> Point:
    """A function that maps the elements of one array, on `size` of them; None for arithmetic."""
    entry = OperatorEntry(opcode, ELEMENTWISE, dtype, ((size,),), float(size), 0, *UNMEASURED)
    # A buffer read and one written, at most 16 bytes an element.
    held_bytes = 16 * size
    name = f"{opcode} of {size} {dtype}"
    return Point(entry, name, held_bytes, lambda bench: _added_time(bench, dtype, size, run))


def stream_point(size_bytes: int) -> Point:
    """Memory traffic of so many bytes, half of them read and half of them written."""
    entry = OperatorEntry(STREAM, "", STREAM_DTYPE, ((size_bytes,),), 0.0, size_bytes, *UNMEASURED)
    operands = _operands(((size_bytes // 8,),), ("float32",))
    name = f"memory traffic of {size_bytes} bytes"
    return Point(entry, name, size_bytes, lambda bench: bench.time(lambda x: x * 2, operands))


def matmul_flops_per_second(bench: Bench, dtype: str, size: int) -> float:
    """The rate of a square matmul of `size` on each device."""
    operands = _operands(((size, size), (size, size)), (dtype, dtype))
    return 2.0 * size**3 / bench.time(lambda x, y: x @ y, operands).seconds


def _added_time(bench: Bench, dtype: str, size: int, run: Callable[[Any], Any] | None) -> Timing:
    """The time that a function adds to a kernel."""
    less = _kernel(bench, dtype, size, 1)
    if run is None:
        more, per = _kernel(bench, dtype, size, 1 + _STEPS), 2 * _STEPS
    else:
        more, per = _kernel(bench, dtype, size, 1, run), 1
    # A difference lost in noise still is no time that anything takes.
    return Timing(max((more.seconds - less.seconds) / per, _LEAST_PART * more.seconds), more.spread)


def _kernel(
    bench: Bench, dtype: str, size: int, steps: int, function: Callable[[Any], Any] = lambda x: x
) -> Timing:
    """Reads and writes a buffer, with so many steps of arithmetic (a multiplication and an
    addition each) behind `function`.

    One application only: of a chain of functions XLA:CPU makes code that is many times slower.
    """

    def body(x: Any) -> Any:
        x = function(x)
        for _ in range(steps):
            x = x * x.dtype.type(0.125) + x.dtype.type(0.5)
        return x

    return bench.time(body, _operands(((size,),), (dtype,)))


def _operands(shapes: Shapes, dtypes: Sequence[Any]) -> list[Any]:
    return [jax.ShapeDtypeStruct(s, d) for s, d in zip(shapes, dtypes, strict=True)]
