"""`TargetFacts`: what a target does with any program, whatever its units.

The defaults hold for all of XLA's compilers, and follow from their common passes. A target's rules
(`kiwi.targets.rules`) change facts one by one.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kiwi.hlo.chains import Fusion
from kiwi.hlo.program import Equation, Value
from kiwi.mesh import DeviceMesh

ScattersSums = Callable[[DeviceMesh, Mapping[int, int], Value], bool]
"""Whether partial sums are reduce-scattered where `kiwi.kernels.partitioner` allows it. Otherwise
they are all-reduced and sliced.

Takes the mesh, a map from mesh axes to the dimensions of the result that they cut, and one device's
partial sums.
"""

SumsElsewhere = Callable[[Equation, Sequence[int], Collection[int]], bool]
"""Whether the reduction of partial sums takes another buffer besides summands and result.

Takes the operator that leaves the partial sums, the number of pieces into which each dimension of
the summands is cut, and the dimensions that a reduce-scatter cuts further.
"""


def _always(mesh: DeviceMesh, scattered: Mapping[int, int], part: Value) -> bool:
    return True


def _never(root: Equation, cuts: Sequence[int], scattered: Collection[int]) -> bool:
    return False


@dataclass(frozen=True)
class TargetFacts:
    """The facts of a target that hold for any program. Bytes refer to one device.

    - `target`: the target's name, as in `verify`.
    - `fusion`: the operators that are computed inside other kernels.

    Communication:

    - `moved_itemsizes`: pairs of a dtype and the bytes per element that collectives move for it, if
      these differ from the dtype's own size.
    - `scatters_sums`, `sums_elsewhere`: see their types.
    - `copies_gathered_results`: whether a collective cannot write a result into the donated
      argument whose buffer the result takes over (`kiwi.problem.copies.GatheredResult`).
    - `sums_beside_one_kernel`: whether partial sums move only while the kernel runs behind which
      they are reduce-scattered. Without such a kernel the device waits for them.
    - `combined_sums_bytes`: the size up to which the compiler combines sums with others. The device
      waits for combined sums. Larger sums move beside a kernel.
    - `adds_sums_first`: whether each device adds partial sums that are only added to each other,
      before one sum is exchanged (`kiwi.kernels.joined_sums`).
    - `pipelines_matmuls`: whether a matmul runs while its operands are gathered and its result is
      scattered.

    Emission:

    - `makes_constants_early`: whether large constants are computed at the start of the step, unless
      a barrier prevents it.
    - `hoists_copies`: whether the compiler moves copies from and to the host before barriers. Plans
      then copy elements of host buffers, at indices that the compiler does not know.
    - `transposes_products`: whether the compiler may lay out the result of a matmul in an order
      that the matmul does not write. Plans can forbid this.
    - `row_major_primitives`: primitives whose operands and results have to lie row-major. The
      compiler would give them layouts that their kernels refuse when they run.
    - `ragged_densely`: whether ragged matmuls are emitted as one matmul over all groups. The
      compiler makes such a matmul anyway, but without partitioning rows or groups.
    - `copies_ahead`: whether to try programs in which copies begin ahead of their readers.
    - `schedules_for_memory`: whether the compiler's scheduler keeps memory low. Plans then begin
      with only the barriers that they need. Otherwise every step has a barrier.

    Host memory:

    - `offloads`: whether values that plans offload leave the device in the compiled program.
    - `offloads_in_scans`: whether offloaded values that scans stack also leave the device, and come
      back unchanged.
    """

    target: str
    fusion: Fusion = field(default_factory=Fusion)
    moved_itemsizes: tuple[tuple[str, int], ...] = ()
    scatters_sums: ScattersSums = _always
    sums_elsewhere: SumsElsewhere = _never
    copies_gathered_results: bool = False
    sums_beside_one_kernel: bool = False
    combined_sums_bytes: int = 0
    adds_sums_first: bool = False
    pipelines_matmuls: bool = False
    makes_constants_early: bool = True
    hoists_copies: bool = False
    transposes_products: bool = False
    row_major_primitives: frozenset[str] = frozenset()
    ragged_densely: bool = False
    copies_ahead: bool = False
    schedules_for_memory: bool = True
    offloads: bool = False
    offloads_in_scans: bool = False

    def moved_itemsize(self, value: Value) -> int:
        """Returns the bytes per element that collectives move for a value."""
        dtype = str(value.dtype)
        return dict(self.moved_itemsizes).get(dtype, value.itemsize)

    def may_offload(self, *, in_scan: bool) -> bool:
        """Whether a value may be offloaded. `in_scan`: whether a scan stacks the value."""
        return self.offloads and (self.offloads_in_scans or not in_scan)
