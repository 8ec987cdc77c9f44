"""The measurements on one device with which a function can be planned.

- *Operators*: library calls and reductions (`kiwi.problem.library_calls`) in the local shapes of
  all sharding strategies, each once, run as in a step.
- *Elementwise* functions that are more than arithmetic, and arithmetic itself, for each dtype: the
  extra time of a kernel with the function. Reading and writing are not part of it.
- *Streams* read one buffer and write another: memory traffic, by bytes, since small buffers stay in
  caches.

All are `OperatorEntry`s of a table, see `kiwi.mesh.profile_table`.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from kiwi.hlo.units import UnitGraph
from kiwi.mesh import DeviceMesh
from kiwi.mesh.profile_entries import (
    ARITHMETIC,
    ELEMENTWISE,
    STREAM,
    STREAM_DTYPE,
    OperatorEntry,
    Shapes,
)
from kiwi.problem.library_calls import FUNCTIONS, LibraryCall, library_calls
from kiwi.problem.strategies import shards_of_strategies
from kiwi.profiling.measure import UNMEASURED, Bench, Kind, Point, TimedFunction, Timing

STREAM_BYTES = tuple(2**k for k in range(14, 29, 2))
"""Bytes read plus written, from 16 KiB to 256 MiB."""

ELEMENTWISE_SIZES = (2**14, 2**17, 2**20)
"""Elements of one device. XLA:CPU computes few of them by one thread, and many by several."""

_STEPS = 8
_LEAST_PART = 1e-4


def operator_points(units: UnitGraph, mesh: DeviceMesh) -> list[Point]:
    """Every library call in every local shape of its strategies, each once."""
    points: dict[tuple[object, ...], Point | None] = {}
    for unit in units.units:
        for position, call in enumerate(library_calls(units, unit, mesh.hardware)):
            if call is None:
                continue
            equation = units.graph.program.equations[unit.equations[position]].jaxpr_eqn
            for shards in shards_of_strategies(unit, mesh):
                key = (*call.known, call.local_shapes(shards))
                if key not in points:
                    points[key] = _operator(call, equation, shards)
    return [point for point in points.values() if point is not None]


def elementwise_points(units: UnitGraph) -> Iterator[Point]:
    """The functions of all units, for each floating dtype that they are applied to."""
    runs: dict[tuple[str, str], Callable[[Any], Any] | None] = {}
    program = units.graph.program
    for unit in units.units:
        for index in unit.equations:
            equation = program.equations[index]
            values = [program.values[output] for output in equation.outputs]
            plain_dtypes = (value.dtype for value in values if not value.is_extended)
            dtypes = {
                str(plain_dtype)
                for plain_dtype in plain_dtypes
                if jax.numpy.issubdtype(plain_dtype, jax.numpy.floating)
            }
            for dtype in dtypes:
                runs.setdefault((ARITHMETIC, dtype), None)
                if equation.name in FUNCTIONS:
                    runs.setdefault((equation.name, dtype), _repeatable(equation.jaxpr_eqn))
    for (opcode, dtype), run in runs.items():
        for size in ELEMENTWISE_SIZES:
            yield _elementwise(opcode, dtype, size, run)


def _repeatable(equation: Any) -> Callable[[Any], Any]:
    """The function of an equation, given one array for all its operands."""
    primitive, params, count = equation.primitive, equation.params, len(equation.invars)
    return lambda x: primitive.bind(*(x for _ in range(count)), **params)


def _operator(call: LibraryCall, equation: Any, shards: Mapping[int, int]) -> Point | None:
    """The operator of an equation; None if its parameters name sizes that differ from device to
    device."""
    shapes, result_shape = call.local_shapes(shards), call.result.local_shape(shards)
    dtypes = tuple(variable.aval.dtype for variable in equation.invars)

    def run(*operands: Any) -> Any:
        if call.subscripts:
            params = {key: equation.params[key] for key in ("precision", "preferred_element_type")}
            return jax.numpy.einsum(call.subscripts, *operands, **params)
        results = equation.primitive.bind(*operands, **equation.params)
        return results[0] if equation.primitive.multiple_results else results

    if not _yields(run, shapes, dtypes, result_shape):
        return None
    figures = (shapes, call.local_flops(shards), call.local_bytes(shards))
    entry = OperatorEntry(*call.known, *figures, *UNMEASURED)
    operands, body = _operands(shapes, dtypes), run
    if call.hlo == {"transpose"}:
        # Alone it is a copy, which is tiled; a kernel that computes reads with strides.
        operands.append(jax.ShapeDtypeStruct(result_shape, dtypes[0]))
        body = lambda x, y: run(x) * run(x) + y * y  # noqa: E731
    text = " ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)
    name = f"{entry.opcode} {entry.dtype} {text}"
    kind = Kind.MATMUL if call.is_matmul else Kind.OPERATOR
    return Point(entry, kind, name, entry.bytes, (TimedFunction(body, operands),))


def _yields(
    run: Callable[..., Any], shapes: Shapes, dtypes: tuple[Any, ...], wanted: tuple[int, ...]
) -> bool:
    try:
        return jax.eval_shape(run, *_operands(shapes, dtypes)).shape == wanted
    except (TypeError, ValueError):
        return False


def _elementwise(opcode: str, dtype: str, size: int, run: Callable[[Any], Any] | None) -> Point:
    """A function that maps the elements of one array, on `size` of them; None for arithmetic."""
    entry = OperatorEntry(opcode, ELEMENTWISE, dtype, ((size,),), float(size), 0, *UNMEASURED)
    # A buffer read and one written, at most 16 bytes an element.
    held_bytes = 16 * size
    shorter = _kernel(dtype, size, 1)
    longer = _kernel(dtype, size, 1 + _STEPS) if run is None else _kernel(dtype, size, 1, run)
    combined = functools.partial(_added_time, 2 * _STEPS if run is None else 1)
    name = f"{opcode} of {size} {dtype}"
    return Point(entry, Kind.ELEMENTWISE, name, held_bytes, (shorter, longer), combined)


def stream_point(size_bytes: int) -> Point:
    """Memory traffic of so many bytes, half of them read and half of them written."""
    entry = OperatorEntry(STREAM, "", STREAM_DTYPE, ((size_bytes,),), 0.0, size_bytes, *UNMEASURED)
    operands = _operands(((size_bytes // 8,),), ("float32",))
    name = f"memory traffic of {size_bytes} bytes"
    function = TimedFunction(lambda x: x * 2, operands)
    return Point(entry, Kind.STREAM, name, size_bytes, (function,))


def matmul_flops_per_second(bench: Bench, dtype: str, size: int) -> float:
    """The rate of a square matmul of `size` on each device."""
    return 2.0 * size**3 / bench.time(matmul((size, size, size), dtype)).seconds


def matmul(sizes: tuple[int, int, int], dtype: str) -> TimedFunction:
    """A product of matrices of (m, k) and (k, n), for `sizes` of (m, n, k)."""
    m, n, k = sizes
    return TimedFunction(lambda x, y: x @ y, _operands(((m, k), (k, n)), (dtype, dtype)))


def _added_time(per: int, less: Timing, more: Timing) -> Timing:
    """The time that a function adds to a kernel, if the longer one has `per` more of them."""
    # A difference lost in noise still is no time that anything takes.
    return Timing(max((more.seconds - less.seconds) / per, _LEAST_PART * more.seconds), more.spread)


def _kernel(
    dtype: str, size: int, steps: int, function: Callable[[Any], Any] = lambda x: x
) -> TimedFunction:
    """Reads and writes a buffer, with so many steps of arithmetic (a multiplication and an addition
    each) after `function`.

    The function is applied once: XLA:CPU's code for a chain of functions is many times slower.
    """

    def body(x: Any) -> Any:
        x = function(x)
        for _ in range(steps):
            x = x * x.dtype.type(0.125) + x.dtype.type(0.5)
        return x

    return TimedFunction(body, _operands(((size,),), (dtype,)))


def _operands(shapes: Shapes, dtypes: Sequence[Any]) -> list[Any]:
    return [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
