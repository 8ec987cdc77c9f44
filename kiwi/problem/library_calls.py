"""Calls of a unit that are kernels of their own (matmuls, convolutions, reductions, scatters), as
profile tables know them.

A call is identified by its opcode, by the parameters of its primitive beside shapes (the
*variant*), and by the shapes of its operands on one device.

If kernels are bound by their bytes (`BackendTraits.is_bound_by_bytes`), matmuls are those of
matrices, as a library gets them. Operands that lie otherwise are transposed in kernels of their
own, which are priced separately. Moves and sums are no calls there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from typing import Any

from kiwi.hlo.equation_kinds import LIBRARY_OPCODES
from kiwi.hlo.rule import Dims
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.kernels.matrix_operands import MATMUL, orders_of_matmul
from kiwi.mesh import Hardware
from kiwi.mesh.profile_entries import Shapes

RECORDED_OPCODES = LIBRARY_OPCODES | {
    "reduce",
    "reduce_window",
    "scatter",
    "select_and_scatter",
    "sort",
    "transpose",
}
"""Calls whose time does not follow from their bytes: on CPUs the time of a reduction depends on the
dimensions that are summed over."""

FUNCTIONS = frozenset(
    {"acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "sin", "sinh"}
    | {"tan", "tanh", "exp", "exp2", "expm1", "log", "log1p", "log2", "logistic", "pow", "cbrt"}
    | {"sqrt", "rsqrt", "div", "rem", "erf", "erf_inv", "erfc", "digamma", "lgamma"}
)
"""Elementwise primitives that take longer than arithmetic."""

_BY_BYTES = frozenset({"reduce", "transpose"})
"""Calls whose time follows from their bytes, if kernels are bound by bytes."""

_NOT_IN_VARIANT = frozenset({"out_sharding", "lhs_shape", "rhs_shape"})
"""Parameters of primitives that do not change the computation on one device."""


@dataclass(frozen=True)
class CallTensor:
    """An operand or the result of a call, unsharded. `dims`: the factors of each dimension."""

    shape: tuple[int, ...]
    dims: Dims
    size_bytes: int

    def local_shape(self, shards: Mapping[int, int]) -> tuple[int, ...]:
        """The shape on one device, each factor cut into so many pieces."""
        pairs = zip(self.shape, self.dims, strict=True)
        return tuple(size // prod(shards.get(f, 1) for f in factors) for size, factors in pairs)

    def local_bytes(self, shards: Mapping[int, int]) -> int:
        """The bytes on one device."""
        return self.size_bytes // prod(shards.get(f, 1) for own in self.dims for f in own)

    def grouped(self, groups: Sequence[Sequence[int]]) -> "CallTensor":
        """The tensor with one dimension for each group of its dimensions."""
        shape = tuple(prod(self.shape[d] for d in group) for group in groups)
        dims = tuple(tuple(chain.from_iterable(self.dims[d] for d in group)) for group in groups)
        return CallTensor(shape, dims, self.size_bytes)

    def lies(self, groups: Sequence[Sequence[int]]) -> bool:
        """Whether its dimensions lie in this order, not counting those of one element."""
        order = [d for group in groups for d in group if self.shape[d] > 1]
        return order == sorted(order)


@dataclass(frozen=True)
class LibraryCall:
    """One call, unsharded.

    - `opcode`, `variant`, `dtype`: its identity in a table, beside shapes.
    - `factors`: all factors that divide its work. `flops`: its work.
    - `hlo`: the opcodes of `RECORDED_OPCODES` that it consists of.
    - `subscripts`: for a matmul of matrices, those of `einsum`; otherwise none.
    """

    opcode: str
    variant: str
    dtype: str
    operands: tuple[CallTensor, ...]
    result: CallTensor
    factors: frozenset[int]
    flops: float
    hlo: frozenset[str]
    subscripts: str = ""

    @property
    def is_matmul(self) -> bool:
        """Whether it is a matmul or convolution, which work bounds and not memory."""
        return bool(self.hlo & LIBRARY_OPCODES)

    @property
    def known(self) -> tuple[str, str, str]:
        """Its identity in a table, beside shapes."""
        return self.opcode, self.variant, self.dtype

    def local_shapes(self, shards: Mapping[int, int]) -> Shapes:
        """The operands on one device, each factor cut into so many pieces."""
        return tuple(operand.local_shape(shards) for operand in self.operands)

    def local_flops(self, shards: Mapping[int, int]) -> float:
        """The work of one device."""
        return self.flops / prod(shards.get(f, 1) for f in self.factors)

    def local_bytes(self, shards: Mapping[int, int]) -> int:
        """The bytes that one device reads and writes."""
        return sum(tensor.local_bytes(shards) for tensor in (*self.operands, self.result))


def library_calls(
    units: UnitGraph, unit: Unit, hardware: Hardware
) -> tuple[LibraryCall | None, ...]:
    """The call of each equation of a unit on such devices; None if the equation is another
    operator, or several."""
    calls = [_call(units, unit, position) for position in range(len(unit.equations))]
    if not hardware.traits.is_bound_by_bytes:
        return tuple(calls)
    known = (None if call is None or call.hlo <= _BY_BYTES else call for call in calls)
    equations = (units.graph.program.equations[k].jaxpr_eqn for k in unit.equations)
    return tuple(
        _of_matrices(call, equation) if call is not None and call.opcode == MATMUL else call
        for call, equation in zip(known, equations, strict=True)
    )


def variant(equation: Any) -> str:
    """The computation of a traced equation, without the shapes of its operands."""
    params = equation.params
    return " ".join(f"{k}={params[k]}" for k in sorted(params) if k not in _NOT_IN_VARIANT)


def _of_matrices(call: LibraryCall, equation: Any) -> LibraryCall:
    """The matmul as one of batches of matrices. An operand is taken by rows or by columns as it
    lies; by rows if another kernel transposes it."""
    orders = [*orders_of_matmul(equation)]
    (left, left_matrix), (right, right_matrix) = (
        _matrix(operand, names, groups)
        for operand, names, groups in zip(call.operands, ("bmk", "bkn"), orders, strict=True)
    )
    batch, rows = len(orders[0][0]), len(orders[0][1])
    dims = range(len(call.result.shape))
    result = call.result.grouped((dims[:batch], dims[batch : batch + rows], dims[batch + rows :]))
    subscripts, params = f"{left},{right}->bmn", equation.params
    types = f"precision={params['precision']} result={params['preferred_element_type']}"
    return replace(
        call,
        variant=f"{subscripts} {types}",
        operands=(left_matrix, right_matrix),
        result=result,
        subscripts=subscripts,
    )


def _matrix(
    operand: CallTensor, names: str, groups: tuple[Sequence[int], ...]
) -> tuple[str, CallTensor]:
    """An operand as matrices, and the names of their dimensions; `groups`: those in front of them,
    of rows and of columns."""
    batch, rows, columns = groups
    if operand.lies((batch, columns, rows)) and not operand.lies(groups):
        return names[0] + names[:0:-1], operand.grouped((batch, columns, rows))
    return names, operand.grouped(groups)


def _call(units: UnitGraph, unit: Unit, position: int) -> LibraryCall | None:
    graph, rule = units.graph, unit.rule
    equation = graph.program.equations[unit.equations[position]]
    known = graph.opcodes[equation.index] & RECORDED_OPCODES
    inputs = [i for i in equation.inputs if isinstance(i, int)]
    if not known or len(inputs) != len(equation.inputs) or len(equation.outputs) != 1:
        return None
    info = graph.equations[equation.index]
    if info.is_region:
        return None
    dims = _operand_dims(rule.operator_operands[position], inputs)
    if dims is None:
        return None
    result_dims = dict(rule.operator_results[position])[equation.outputs[0]]
    values = [graph.program.values[i] for i in (*inputs, equation.outputs[0])]
    pairs = zip(values, (*dims, result_dims), strict=True)
    *operands, result = (CallTensor(v.shape, d, v.size_bytes) for v, d in pairs)
    return LibraryCall(
        equation.name,
        variant(equation.jaxpr_eqn),
        str(values[0].dtype),
        tuple(operands),
        result,
        rule.operator_factors[position],
        info.flops,
        known,
    )


def _operand_dims(
    operands: tuple[tuple[Any, Dims], ...], inputs: Sequence[int]
) -> tuple[Dims, ...] | None:
    """The factors of each input; an operand read twice alike is listed once."""
    own = {value: [dims for key, dims in operands if key == value] for value in inputs}
    if not all(own.values()):
        return None
    before = [inputs[:position].count(value) for position, value in enumerate(inputs)]
    pairs = zip(inputs, before, strict=True)
    return tuple(own[value][min(repeated, len(own[value]) - 1)] for value, repeated in pairs)
