"""`Kernel`: what the compiler runs for one unit, as facts.

Rules (`kiwi.targets.rules`) state the facts. The problem, the memory account and the emission read
them. A fact that depends on the unit's sharding is an object. It is asked with layouts, or with the
number of pieces into which each factor of the unit's rule is cut (`shards`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kiwi.hlo.program import Value
from kiwi.hlo.units import Unit
from kiwi.interval import Interval
from kiwi.mesh import TensorSharding


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Memory that the compiler holds beside operands and result while a kernel runs.

    - `lent_bytes`: the workspace lent to a library, whatever it computes.
    """

    lent_bytes: int = 0

    def buffers(
        self, shards: Mapping[int, int], read_bytes: Sequence[int], result_bytes: int
    ) -> tuple[int, ...]:
        """Local bytes of each buffer.

        - `shards`: into how many pieces each factor is cut.
        - `read_bytes`: local bytes of each read. `result_bytes`: local bytes of all results.
        """
        return (self.lent_bytes,) if self.lent_bytes else ()


NO_WORKSPACE = Workspace()


@dataclass(frozen=True)
class HeldEarly:
    """A buffer that exists from the start of the step.

    - `end`: the index of the unit before which it is free.
    - `numerator`, `denominator`: its bytes as a share of the unit's local result.
    """

    end: int
    numerator: int = 1
    denominator: int = 1

    def interval(self, result_bytes: int) -> Interval:
        """When it is held, and its local bytes, for a unit's result of `result_bytes`."""
        return Interval(0, self.end, result_bytes * self.numerator // self.denominator)


class WorkspaceOfResult(Protocol):
    """Memory of a kernel beside operands and result, by the size of the result."""

    def local_bytes(self, result_bytes: int) -> int:
        """Local bytes, for a local result of `result_bytes`."""
        ...


class TransposedCopy(Protocol):
    """Whether the gathered copy of an operand is transposed to another buffer."""

    def is_transposed(
        self, mesh_shape: tuple[int, ...], stored: TensorSharding, wanted: TensorSharding
    ) -> bool:
        """Whether it is, between the stored layout of the operand and the layout that the unit
        expects."""
        ...


class TransposedOperand(Protocol):
    """Tells whether a kernel of its own transposes an operand first."""

    def is_transposed(self, shards: Mapping[int, int]) -> bool:
        """`shards`: into how many pieces each factor is cut."""
        ...


@dataclass(frozen=True)
class SharedKernel:
    """The kernel of earlier units that also computes a unit.

    - `first`: the first unit of the kernel.
    - `values`: the operands of the unit that the kernel has anyway.
    """

    first: int
    values: frozenset[int]


@dataclass(frozen=True)
class RowReduction:
    """A reduction in the kernel of its readers.

    - `factors`: the factors that are reduced.
    - `rows`: the value whose rows the readers go over again.
    - `reader`: the unit of maps that ends the kernel.
    - `is_summed_once`: readers of another phase read the sum too, so that it has a kernel of its
      own. If the unit is recomputed for these, each phase reduces the rows in the kernel of its
      readers. If `reader` is recomputed, too, the later readers have two kernels (`repeats`).
    - `masked_elements`: the elements of the rows, if they read values that several rows share, such
      as a causal mask for all heads; otherwise 0. `masked_once_bytes`, `masked_again_bytes`: the
      extra cost of such an element if the unit runs once or again, as bytes that move.
    """

    factors: frozenset[int]
    rows: int
    reader: int
    is_summed_once: bool
    masked_elements: int = 0
    masked_once_bytes: int = 0
    masked_again_bytes: int = 0

    @property
    def repeats(self) -> bool:
        """Whether each kernel of its readers reduces the rows for itself, if two kernels have some
        (`kiwi.emit.reduced_again`). Under a mask that takes longer than a kernel of its own."""
        return self.is_summed_once and not self.masked_elements


@dataclass(frozen=True)
class MovedBeside:
    """Bytes that kernels beside the unit's own move through memory.

    - `place`: the position of the unit's equation for which they do. Its factors cut the bytes.
    - `factors`: the factors that cut the bytes, if these are not all of the equation's; else None.
    """

    place: int
    bytes: int
    factors: frozenset[int] | None = None


@dataclass(frozen=True, eq=False)
class Kernel:
    """The kernel that the compiler runs for one unit.

    Reads and writes:

    - `moved`: for each entry of `unit.rule.reads` the value as collectives move it: in the dtype in
      which the unit needs it, if that is narrower.
    - `overwritable`: the values that the result may be written over.
    - `transposed_copies`: by number of the read, when its gathered copy is transposed.
    - `transposed_operands`: by number of the read, when a kernel of its own transposes it first.

    Memory:

    - `workspace`: memory beside operands and result, by sharding. `workspace_of_result`: the same
      by the size of the result; None for nothing.
    - `held_early`: buffers held from the start of the step. `held_early_without_barriers`: those
      held early as well if no barrier of a plan prevents it.
    - `sums_behind`: the later unit behind which its partial sums are reduce-scattered; None if they
      are reduced at once.

    Computation, and other units in the same kernel:

    - `shared`: the earlier kernel that computes it; None if it has its own. `in_readers`: whether
      each kernel that reads it takes it from its operand, so that it is no kernel.
    - `rows`: its reduction in the kernel of its readers; None for nothing.
    - `moved_beside`: the traffic of further kernels.
    - `maps_apart`: maps behind its matmul are a kernel of their own. `adds_apart`: the factors
      whose sharding puts an addition to the matmul's result into such a kernel.
    - `functions_apart`: by equation, whether other execution units compute it meanwhile.
    - `stack_passes`: how often its result passes through memory on the way to a loop's stack.
    """

    unit: Unit
    moved: tuple[Value, ...]
    overwritable: tuple[int, ...] = ()
    transposed_copies: tuple[tuple[int, TransposedCopy], ...] = ()
    transposed_operands: tuple[tuple[int, TransposedOperand], ...] = ()
    workspace: Workspace = NO_WORKSPACE
    workspace_of_result: WorkspaceOfResult | None = None
    held_early: tuple[HeldEarly, ...] = ()
    held_early_without_barriers: tuple[HeldEarly, ...] = ()
    sums_behind: int | None = None
    shared: SharedKernel | None = None
    in_readers: bool = False
    rows: RowReduction | None = None
    moved_beside: tuple[MovedBeside, ...] = ()
    maps_apart: bool = False
    adds_apart: frozenset[int] = frozenset()
    functions_apart: frozenset[int] = frozenset()
    stack_passes: int = 0
