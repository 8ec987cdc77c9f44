"""`KernelKind`: the properties that equal kernels share, such as the kernels of equal layers.

Kernels of one kind offer the same strategies, with the same seconds and bytes. So the strategies of
a kind are enumerated and priced once (`kiwi.problem.strategy_table`), all its kernels take the same
memory under a strategy (`kiwi.problem.unit_memory`), and nodes of equal strategies can be tied
(`kiwi.problem.equal_layers`).
"""

import functools
from collections.abc import Hashable
from dataclasses import dataclass

from kiwi.hlo.equation_kinds import LIBRARY_OPCODES
from kiwi.hlo.program import Value
from kiwi.hlo.rule import Dims
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.kernels.graph import KernelGraph
from kiwi.kernels.joined_sums import added_first, share_of_sums
from kiwi.kernels.kernel import Workspace, WorkspaceOfResult
from kiwi.mesh import DeviceMesh
from kiwi.problem.costs import UnitWork
from kiwi.problem.manual_computations import GivenLayouts, given_layouts


@dataclass(frozen=True)
class TensorKind:
    """A tensor that a kernel reads or writes.

    - `storage`: the facts beside shape and dtype that its buffer depends on (`Storage.kind`).
    """

    shape: tuple[int, ...]
    dtype: str
    storage: Hashable


@dataclass(frozen=True)
class KernelKind:
    """The properties that equal kernels share on one mesh.

    The operator's sharding rule:

    - `factor_sizes`, `reduction`, `blocked`: as in `ComposedRule`.
    - `read_dims`, `result_dims`: the factors of each dimension of each tensor.

    The tensors that the kernel reads and writes:

    - `reads`, `results`: the tensors as they are stored.
    - `moved_dtypes`: the dtype in which collectives move each read.
    - `summed_dtype`: the dtype in which collectives move partial sums; "" without a result.
    - `given`: the layouts that a `shard_map` fixes; None for all other kernels.

    Facts that the target's rules state, and prices:

    - `workspace`, `workspace_of_result`: as in `Kernel`.
    - `work`: the kernel's computation and traffic on a device of the mesh, with all other facts
      that decide how long it runs.
    - `operand_trips`: how often operands are resharded in a step.
    - `result_trips`: how often each result is resharded in a step.
    - `share_of_sums`, `added_first`: as in `kiwi.kernels.joined_sums`. `added_first` is 1 for a
      target that exchanges every partial sum on its own.
    """

    factor_sizes: tuple[int, ...]
    reduction: frozenset[int]
    blocked: frozenset[int]
    read_dims: tuple[Dims, ...]
    result_dims: tuple[Dims, ...]
    reads: tuple[TensorKind, ...]
    results: tuple[TensorKind, ...]
    moved_dtypes: tuple[str, ...]
    summed_dtype: str
    given: GivenLayouts | None
    workspace: Workspace
    workspace_of_result: WorkspaceOfResult | None
    work: UnitWork
    operand_trips: float
    result_trips: tuple[float, ...]
    share_of_sums: float
    added_first: int

    @classmethod
    def of(cls, kernels: KernelGraph, unit: Unit, mesh: DeviceMesh) -> "KernelKind":
        """Returns the kind of a unit's kernel."""
        units, kernel, rule = kernels.units, kernels[unit.index], unit.rule
        values, adds_first = units.graph.program.values, kernels.facts.adds_sums_first

        def tensor(value: int) -> TensorKind:
            info = values[value]
            return TensorKind(info.shape, str(info.dtype), kernels.storage.kind(value))

        return cls(
            factor_sizes=rule.factor_sizes,
            reduction=rule.reduction,
            blocked=rule.blocked,
            read_dims=tuple(dims for _, dims in rule.reads),
            result_dims=rule.results,
            reads=tuple(tensor(value) for value, _ in rule.reads),
            results=tuple(tensor(value) for value in unit.outputs),
            moved_dtypes=tuple(str(moved.dtype) for moved in kernel.moved),
            summed_dtype=str(summed_value(units, unit).dtype) if unit.outputs else "",
            given=given_layouts(units, unit, mesh),
            workspace=kernel.workspace,
            workspace_of_result=kernel.workspace_of_result,
            work=UnitWork.of(kernels, unit, mesh),
            operand_trips=units.operand_trips(unit),
            result_trips=tuple(units.result_trips(value) for value in unit.outputs),
            share_of_sums=share_of_sums(units, unit, adds_first=adds_first),
            added_first=added_first(units, unit) if adds_first else 1,
        )


class KernelKinds:
    """The kinds of a step's kernels on a mesh. Equal kernels share one object."""

    def __init__(self, kernels: KernelGraph, mesh: DeviceMesh) -> None:
        self._kernels, self._mesh = kernels, mesh
        self._of_unit: dict[int, KernelKind] = {}
        self._known: dict[KernelKind, KernelKind] = {}

    def of(self, unit: Unit) -> KernelKind:
        """The kind of a unit's kernel."""
        kind = self._of_unit.get(unit.index)
        if kind is None:
            new_kind = KernelKind.of(self._kernels, unit, self._mesh)
            kind = self._of_unit[unit.index] = self._known.setdefault(new_kind, new_kind)
        return kind


@functools.lru_cache(maxsize=8)
def kernel_kinds(kernels: KernelGraph, mesh: DeviceMesh) -> KernelKinds:
    """Returns the kinds of a step's kernels. They are cached while the step is planned."""
    return KernelKinds(kernels, mesh)


def summed_value(units: UnitGraph, unit: Unit) -> Value:
    """Returns the value that is summed over devices if a unit leaves partial sums: the unit's
    result, or the result of its last matmul or reduction if the unit converts it to a wider dtype
    afterwards."""
    program = units.graph.program
    result = program.values[unit.outputs[0]]
    for index in reversed(unit.equations):
        if units.graph.opcodes[index] & (LIBRARY_OPCODES | {"reduce"}):
            summand = program.values[program.equations[index].outputs[0]]
            return summand if summand.itemsize < result.itemsize else result
    return result
