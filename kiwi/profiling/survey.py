"""What a profile table has to have for planning a function: its operators in all local shapes.

- Library calls and reductions (`kiwi.problem.library_calls`) in the local shapes that any sharding
  strategy gives them, each once.
- The elementwise functions that are more than arithmetic, and arithmetic itself, for each dtype.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from kiwi.hlo.units import UnitGraph
from kiwi.mesh import DeviceMesh
from kiwi.mesh.profile_entries import ARITHMETIC, OperatorEntry, Shapes
from kiwi.problem.library_calls import FUNCTIONS, LibraryCall, library_calls
from kiwi.problem.strategies import shards_of_strategies
from kiwi.profiling.measure import UNMEASURED, Point
from kiwi.profiling.operator_points import ELEMENTWISE_SIZES, elementwise_point, operator_point


def operator_points(units: UnitGraph, mesh: DeviceMesh) -> list[Point]:
    """Every library call in every local shape of its strategies, each once."""
    found: dict[tuple[object, ...], Point | None] = {}
    for unit in units.units:
        for position, call in enumerate(library_calls(units, unit)):
            if call is None:
                continue
            equation = units.graph.program.equations[unit.equations[position]].jaxpr_eqn
            for shards in shards_of_strategies(unit, mesh):
                key = (*call.known, call.local_shapes(shards))
                if key not in found:
                    found[key] = _operator(call, equation, shards)
    return [point for point in found.values() if point is not None]


def elementwise_points(units: UnitGraph) -> Iterator[Point]:
    """The functions of all units, for each floating dtype that they are applied to."""
    runs: dict[tuple[str, str], Callable[[Any], Any] | None] = {}
    program = units.graph.program
    for unit in units.units:
        for index in unit.equations:
            equation = program.equations[index]
            values = [program.values[o] for o in equation.outputs]
            plain = (value.dtype for value in values if not value.is_extended)
            dtypes = {str(d) for d in plain if jax.numpy.issubdtype(d, jax.numpy.floating)}
            for dtype in dtypes:
                runs.setdefault((ARITHMETIC, dtype), None)
                if equation.name in FUNCTIONS:
                    runs.setdefault((equation.name, dtype), _repeatable(equation.jaxpr_eqn))
    for (opcode, dtype), run in runs.items():
        for size in ELEMENTWISE_SIZES:
            yield elementwise_point(opcode, dtype, size, run)


def _repeatable(equation: Any) -> Callable[[Any], Any]:
    """The function of an equation, given one array for all its operands."""
    primitive, params, count = equation.primitive, equation.params, len(equation.invars)
    return lambda x: primitive.bind(*(x for _ in range(count)), **params)


def _operator(call: LibraryCall, equation: Any, shards: Mapping[int, int]) -> Point | None:
    """None if the equation's parameters name sizes that differ from device to device."""
    shapes, found = call.local_shapes(shards), call.local_result_shape(shards)
    dtypes = tuple(v.aval.dtype for v in equation.invars)

    def run(*operands: Any) -> Any:
        results = equation.primitive.bind(*operands, **equation.params)
        return results[0] if equation.primitive.multiple_results else results

    if not _yields(run, shapes, dtypes, found):
        return None
    figures = (shapes, call.local_flops(shards), call.local_bytes(shards))
    entry = OperatorEntry(*call.known, *figures, *UNMEASURED)
    if not call.is_transpose:
        return operator_point(entry, dtypes, run)
    # Alone it is a copy, which is tiled; a kernel that computes reads with strides.
    beside = (jax.ShapeDtypeStruct(found, dtypes[0]),)
    return operator_point(entry, dtypes, lambda x, y: run(x) * run(x) + y * y, beside)


def _yields(
    run: Callable[..., Any], shapes: Shapes, dtypes: tuple[Any, ...], wanted: tuple[int, ...]
) -> bool:
    operands = [jax.ShapeDtypeStruct(s, d) for s, d in zip(shapes, dtypes, strict=True)]
    try:
        return jax.eval_shape(run, *operands).shape == wanted
    except (TypeError, ValueError):
        return False
