"""`Kernel`: what the compiler runs for one unit, as facts.

Rules (`kiwi.targets.rules`) state the facts. The problem, the memory account and the emission read
the facts. A fact that depends on the unit's sharding is an object with a method. The method takes
layouts, or the number of pieces into which each factor of the unit's rule is cut (`shards`).
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
    """Memory that the compiler holds besides operands and result while a kernel runs.

    - `lent_bytes`: the bytes that a library gets as workspace, whatever it computes.
    """

    lent_bytes: int = 0

    def buffers(
        self, shards: Mapping[int, int], read_bytes: Sequence[int], result_bytes: int
    ) -> tuple[int, ...]:
        """Returns the local bytes of each buffer.

        - `shards`: the number of pieces into which each factor is cut.
        - `read_bytes`: the local bytes of each read.
        - `result_bytes`: the local bytes of all results.
        """
        return (self.lent_bytes,) if self.lent_bytes else ()


NO_WORKSPACE = Workspace()
"""The workspace of a kernel that needs no memory besides operands and result."""


@dataclass(frozen=True)
class HeldEarly:
    """A buffer that exists from the start of the step.

    - `end`: the index of the unit before which the buffer is freed.
    - `numerator`, `denominator`: the bytes of the buffer as a share of the unit's local result.
    """

    end: int
    numerator: int = 1
    denominator: int = 1

    def interval(self, result_bytes: int) -> Interval:
        """Returns the times at which the buffer is held, with its local bytes.

        `result_bytes`: the local bytes of the unit's result.
        """
        return Interval(0, self.end, result_bytes * self.numerator // self.denominator)


class WorkspaceOfResult(Protocol):
    """Memory of a kernel besides operands and result, which depends on the size of the result."""

    def local_bytes(self, result_bytes: int) -> int:
        """Returns the local bytes of the workspace. `result_bytes`: the local bytes of the
        result."""
        ...


class TransposedCopy(Protocol):
    """Tells whether the gathered copy of an operand is transposed to another buffer."""

    def is_transposed(
        self, mesh_shape: tuple[int, ...], stored: TensorSharding, wanted: TensorSharding
    ) -> bool:
        """Whether the copy is transposed.

        - `stored`: the layout in which the operand is stored.
        - `wanted`: the layout that the unit expects.
        """
        ...


class TransposedOperand(Protocol):
    """Tells whether a separate kernel transposes an operand before the kernel reads it."""

    def is_transposed(self, shards: Mapping[int, int]) -> bool:
        """Whether the operand is transposed. `shards`: the number of pieces into which each factor
        is cut."""
        ...


@dataclass(frozen=True)
class SharedKernel:
    """The kernel of earlier units that also computes a unit.

    - `first`: the index of the first unit of the kernel.
    - `values`: the operands of the unit that the kernel reads or computes anyway.
    """

    first: int
    values: frozenset[int]


@dataclass(frozen=True)
class RowReduction:
    """A reduction of rows that the kernel of its readers computes.

    - `factors`: the factors that are reduced.
    - `rows`: the index of the value that is reduced and that the readers read again.
    - `reader`: the index of the unit of maps that ends the kernel.
    - `is_summed_once`: whether readers of another phase read the sum too, so that the sum has a
      separate kernel. If the unit is recomputed for these readers, each phase reduces the rows in
      the kernel of its readers. If `reader` is recomputed, too, the later readers have two kernels
      (`repeats`).
    - `masked_elements`: the elements of the rows, if computing them reads values that several rows
      share, such as a causal mask for all heads; otherwise 0.
    - `masked_once_bytes`, `masked_again_bytes`: the extra cost of such an element if the unit runs
      once or is recomputed, in bytes that move through memory.
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
        """Whether two kernels of later readers each reduce the rows for themselves
        (`kiwi.emit.reduced_again`). Under a mask, that takes longer than a separate kernel."""
        return self.is_summed_once and not self.masked_elements


@dataclass(frozen=True)
class MovedBeside:
    """Bytes that further kernels of a unit move through memory.

    - `place`: the position, among the unit's equations, of the equation that needs these kernels.
    - `bytes`: the unsharded bytes.
    - `factors`: the factors that cut the bytes. None stands for all factors of the equation.
    """

    place: int
    bytes: int
    factors: frozenset[int] | None = None


@dataclass(frozen=True, eq=False)
class Kernel:
    """The kernel that the compiler runs for one unit.

    Reads and writes:

    - `moved`: for each entry of `unit.rule.reads`, the value as collectives move it. Its dtype is
      the one in which the unit needs the value, if that is narrower.
    - `overwritable`: the indices of the values over which the result may be written.
    - `transposed_copies`: pairs of a read's number and the condition under which its gathered copy
      is transposed.
    - `transposed_operands`: pairs of a read's number and the condition under which a separate
      kernel transposes it first.

    Memory:

    - `workspace`: buffers besides operands and result, whose bytes depend on the layouts before
      partial sums are summed. Units that are recomputed together for one reader do not each hold
      them (`kiwi.memory.live_ranges`, rule 5).
    - `workspace_of_result`: memory besides operands and result, whose bytes depend on the result
      once it is scattered. Each unit that is recomputed holds it; None if there is none.
    - `held_early`: buffers that are held from the start of the step.
    - `held_early_without_barriers`: further buffers that are held from the start of the step,
      unless a barrier of a plan prevents it.
    - `sums_behind`: the index of the later unit behind which the partial sums are reduce-scattered;
      None if they are reduced at once.

    Computation, and other units in the same kernel:

    - `shared`: the earlier kernel that computes the unit; None if the unit has its own kernel.
    - `in_readers`: whether each reader computes the unit's result from the unit's operand, so that
      the unit has no kernel.
    - `rows`: the reduction that the kernel of the unit's readers computes; None if there is none.
    - `moved_beside`: the traffic of further kernels.
    - `maps_apart`: whether maps behind the unit's matmul have a separate kernel.
    - `adds_apart`: the factors whose sharding moves an addition to the matmul's result to a
      separate kernel.
    - `functions_apart`: the positions, among the unit's equations, of equations that other
      execution units compute at the same time.
    - `stack_passes`: the number of times that the result passes through memory on the way to a
      loop's stack.
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
