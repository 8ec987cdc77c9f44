"""The measurements on one device that planning a function needs.

- *Operators* are library calls and reductions (`kiwi.problem.library_calls`) in the local shapes of
  all sharding strategies. Each shape is measured once.
- *Elementwise* points measure the time that a function adds to a kernel, for each dtype. The
  functions are arithmetic, and those that cost more. The time to read and write the tensor is not
  part of it.
- *Streams* read one buffer and write another. They measure memory traffic by size, because small
  buffers stay in caches.

All are `OperatorEntry`s of a profile table, see `kiwi.mesh.profile_table`.
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
"""The sizes of streams: bytes read plus bytes written, from 16 KiB to 256 MiB."""

ELEMENTWISE_SIZES = (2**14, 2**17, 2**20)
"""The numbers of elements on one device at which elementwise functions are measured. XLA:CPU
computes small tensors with one thread and large ones with several."""

_STEPS = 8
"""The extra steps of arithmetic in the longer of the two kernels that measure arithmetic."""

_LEAST_PART = 1e-4
"""The least time of an elementwise function, as a part of the longer kernel's time. It replaces a
difference that noise has hidden."""


def operator_points(units: UnitGraph, mesh: DeviceMesh) -> list[Point]:
    """Returns a point for each library call and reduction of the units, in each local shape that a
    sharding strategy on the mesh leads to. Equal shapes of equal operators have one point."""
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
    """Yields the points of all elementwise functions of the units, for each floating dtype that
    they are applied to, at all `ELEMENTWISE_SIZES`."""
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
    """Returns the function of an equation, with the same array for all its operands."""
    primitive, params, count = equation.primitive, equation.params, len(equation.invars)
    return lambda x: primitive.bind(*(x for _ in range(count)), **params)


def _operator(call: LibraryCall, equation: Any, shards: Mapping[int, int]) -> Point | None:
    """Returns the point of an operator in one local shape; None if the operator cannot be run in
    it.

    An operator whose parameters contain global sizes cannot be run in a local shape.

    - `shards`: the number of pieces into which each factor is cut.
    """
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
        # A transpose alone would be a tiled copy. In a step a kernel that computes reads the
        # operand with strides.
        operands.append(jax.ShapeDtypeStruct(result_shape, dtypes[0]))
        body = lambda x, y: run(x) * run(x) + y * y  # noqa: E731
    text = " ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)
    name = f"{entry.opcode} {entry.dtype} {text}"
    kind = Kind.MATMUL if call.is_matmul else Kind.OPERATOR
    return Point(entry, kind, name, entry.bytes, (TimedFunction(body, operands),))


def _yields(
    run: Callable[..., Any], shapes: Shapes, dtypes: tuple[Any, ...], wanted: tuple[int, ...]
) -> bool:
    """Returns whether `run` accepts operands of these types, and its result has the shape
    `wanted`."""
    try:
        return jax.eval_shape(run, *_operands(shapes, dtypes)).shape == wanted
    except (TypeError, ValueError):
        return False


def _elementwise(opcode: str, dtype: str, size: int, run: Callable[[Any], Any] | None) -> Point:
    """Returns the point of an elementwise function on `size` elements.

    - `run`: the function of one array; None for arithmetic.
    """
    entry = OperatorEntry(opcode, ELEMENTWISE, dtype, ((size,),), float(size), 0, *UNMEASURED)
    # One buffer is read and one is written, at most 16 bytes per element together.
    held_bytes = 16 * size
    shorter = _kernel(dtype, size, 1)
    longer = _kernel(dtype, size, 1 + _STEPS) if run is None else _kernel(dtype, size, 1, run)
    combined = functools.partial(_added_time, 2 * _STEPS if run is None else 1)
    name = f"{opcode} of {size} {dtype}"
    return Point(entry, Kind.ELEMENTWISE, name, held_bytes, (shorter, longer), combined)


def stream_point(size_bytes: int) -> Point:
    """Returns the point of memory traffic of `size_bytes`: half of them are read, half written."""
    entry = OperatorEntry(STREAM, "", STREAM_DTYPE, ((size_bytes,),), 0.0, size_bytes, *UNMEASURED)
    operands = _operands(((size_bytes // 8,),), ("float32",))
    name = f"memory traffic of {size_bytes} bytes"
    function = TimedFunction(lambda x: x * 2, operands)
    return Point(entry, Kind.STREAM, name, size_bytes, (function,))


def matmul_flops_per_second(bench: Bench, dtype: str, size: int) -> float:
    """Returns the FLOPs per second of a matmul of two square matrices with `size` rows, on each
    device."""
    return 2.0 * size**3 / bench.time(matmul((size, size, size), dtype)).seconds


def matmul(sizes: tuple[int, int, int], dtype: str) -> TimedFunction:
    """Returns the matmul of matrices of the shapes (m, k) and (k, n). `sizes` are (m, n, k)."""
    m, n, k = sizes
    return TimedFunction(lambda x, y: x @ y, _operands(((m, k), (k, n)), (dtype, dtype)))


def _added_time(per: int, less: Timing, more: Timing) -> Timing:
    """Returns the time that one function adds to a kernel. The kernel of `more` computes `per`
    functions more than the kernel of `less`."""
    # Noise may hide the difference. No function takes no time.
    return Timing(max((more.seconds - less.seconds) / per, _LEAST_PART * more.seconds), more.spread)


def _kernel(
    dtype: str, size: int, steps: int, function: Callable[[Any], Any] = lambda x: x
) -> TimedFunction:
    """Returns a kernel that reads a buffer, applies `function` and arithmetic, and writes a buffer.

    The function is applied once, because XLA:CPU generates much slower code for a chain of
    functions.

    - `steps`: the number of steps of arithmetic: a multiplication and an addition each.
    """

    def body(x: Any) -> Any:
        x = function(x)
        for _ in range(steps):
            x = x * x.dtype.type(0.125) + x.dtype.type(0.5)
        return x

    return TimedFunction(body, _operands(((size,),), (dtype,)))


def _operands(shapes: Shapes, dtypes: Sequence[Any]) -> list[Any]:
    return [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
