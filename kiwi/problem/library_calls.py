"""Library calls of a unit: operators that are kernels of their own (matmuls, convolutions,
reductions, scatters), identified as in profile tables.

A call is identified by its opcode, by the parameters of its primitive other than shapes (the
*variant*), and by the shapes of its operands on one device.

If kernels are bound by their bytes (`BackendTraits.is_bound_by_bytes`), a matmul is identified by
the matrices that the library gets. Operands that lie otherwise are transposed in kernels of their
own, which are priced separately. Transposes and sums are not calls there.
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
"""Operators that profile tables record, since their time does not follow from their bytes. On CPUs,
for example, the time of a reduction depends on the dimensions that it sums over."""

FUNCTIONS = frozenset(
    {"acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "sin", "sinh"}
    | {"tan", "tanh", "exp", "exp2", "expm1", "log", "log1p", "log2", "logistic", "pow", "cbrt"}
    | {"sqrt", "rsqrt", "div", "rem", "erf", "erf_inv", "erfc", "digamma", "lgamma"}
)
"""Elementwise primitives that take longer than arithmetic."""

_BY_BYTES = frozenset({"reduce", "transpose"})
"""Operators that are not recorded if kernels are bound by their bytes: their time follows from
these."""

_NOT_IN_VARIANT = frozenset({"out_sharding", "lhs_shape", "rhs_shape"})
"""Parameters of primitives that do not change the computation on one device."""


@dataclass(frozen=True)
class CallTensor:
    """An operand or the result of a call, unsharded. `dims` lists the factors of each dimension."""

    shape: tuple[int, ...]
    dims: Dims
    size_bytes: int

    def local_shape(self, shards: Mapping[int, int]) -> tuple[int, ...]:
        """The shape on one device. `shards` gives the number of pieces of each sharded factor."""
        pairs = zip(self.shape, self.dims, strict=True)
        return tuple(
            size // prod(shards.get(factor, 1) for factor in factors) for size, factors in pairs
        )

    def local_bytes(self, shards: Mapping[int, int]) -> int:
        """The bytes on one device; `shards` as in `local_shape`."""
        return self.size_bytes // prod(
            shards.get(factor, 1) for factors in self.dims for factor in factors
        )

    def grouped(self, groups: Sequence[Sequence[int]]) -> "CallTensor":
        """The tensor with each group of its dimensions merged into one dimension."""
        shape = tuple(prod(self.shape[dim] for dim in group) for group in groups)
        dims = tuple(
            tuple(chain.from_iterable(self.dims[dim] for dim in group)) for group in groups
        )
        return CallTensor(shape, dims, self.size_bytes)

    def lies(self, groups: Sequence[Sequence[int]]) -> bool:
        """Whether the dimensions lie in the order of `groups`. Dimensions of size one are
        ignored."""
        order = [dim for group in groups for dim in group if self.shape[dim] > 1]
        return order == sorted(order)


@dataclass(frozen=True)
class LibraryCall:
    """One call, unsharded.

    - `opcode`, `variant`, `dtype`: the call's key in a profile table, together with shapes.
    - `factors`: all factors whose sharding divides its work. `flops`: its work.
    - `hlo`: the opcodes of `RECORDED_OPCODES` that the call consists of.
    - `subscripts`: for a matmul of matrices, its `einsum` subscripts; otherwise "".
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
        """Whether the call is a matmul or a convolution, which is bound by work and not by memory
        traffic."""
        return bool(self.hlo & LIBRARY_OPCODES)

    @property
    def known(self) -> tuple[str, str, str]:
        """The call's key in a profile table, without shapes."""
        return self.opcode, self.variant, self.dtype

    def local_shapes(self, shards: Mapping[int, int]) -> Shapes:
        """The operands' shapes on one device; `shards` as in `CallTensor.local_shape`."""
        return tuple(operand.local_shape(shards) for operand in self.operands)

    def local_flops(self, shards: Mapping[int, int]) -> float:
        """The FLOPs of one device."""
        return self.flops / prod(shards.get(factor, 1) for factor in self.factors)

    def local_bytes(self, shards: Mapping[int, int]) -> int:
        """The bytes that one device reads and writes."""
        return sum(tensor.local_bytes(shards) for tensor in (*self.operands, self.result))


def library_calls(
    units: UnitGraph, unit: Unit, hardware: Hardware
) -> tuple[LibraryCall | None, ...]:
    """Returns the library call of each equation of a unit on devices of `hardware`. The call is
    None if the equation is no recorded operator, is a region, or has operands that are no
    values."""
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
    """Returns the parameters of a traced equation as text, without the shapes of its operands."""
    params = equation.params
    return " ".join(f"{k}={params[k]}" for k in sorted(params) if k not in _NOT_IN_VARIANT)


def _of_matrices(call: LibraryCall, equation: Any) -> LibraryCall:
    """Returns the matmul as a matmul of batched matrices. An operand is read by rows or by columns,
    as it lies. An operand that another kernel transposes is read by rows."""
    orders = [*orders_of_matmul(equation)]
    (left_subscripts, left_matrix), (right_subscripts, right_matrix) = (
        _matrix(operand, names, groups)
        for operand, names, groups in zip(call.operands, ("bmk", "bkn"), orders, strict=True)
    )
    batch, rows = len(orders[0][0]), len(orders[0][1])
    dims = range(len(call.result.shape))
    result = call.result.grouped((dims[:batch], dims[batch : batch + rows], dims[batch + rows :]))
    subscripts, params = f"{left_subscripts},{right_subscripts}->bmn", equation.params
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
    """Returns the einsum subscripts of an operand, and the operand as batched matrices. `groups`
    are the operand's batch dimensions, its row dimensions and its column dimensions."""
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
    *operands, result = (
        CallTensor(value.shape, factors, value.size_bytes) for value, factors in pairs
    )
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
    """Returns the factors of each input; None if one is not among `operands`, which list an input
    once that is read twice in the same way."""
    dims_of_input = {value: [dims for key, dims in operands if key == value] for value in inputs}
    if not all(dims_of_input.values()):
        return None
    before = [inputs[:position].count(value) for position, value in enumerate(inputs)]
    pairs = zip(inputs, before, strict=True)
    return tuple(
        dims_of_input[value][min(repeated, len(dims_of_input[value]) - 1)]
        for value, repeated in pairs
    )
