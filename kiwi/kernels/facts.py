"""`TargetFacts`: what a target does with any program, whatever its units.

The defaults are those of all of XLA's compilers, which follow from their common passes. A target's
rules (`kiwi.targets.rules`) change them one by one.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kiwi.hlo.chains import Fusion
from kiwi.hlo.program import Equation, Value
from kiwi.mesh import DeviceMesh

ScattersSums = Callable[[DeviceMesh, Mapping[int, int], Value], bool]
"""Whether partial sums are reduce-scattered where `kiwi.kernels.partitioner` says so, and not
all-reduced and sliced. Takes the mesh, by mesh axis the dimension of the result that it cuts, and
one device's partial sums."""

SumsElsewhere = Callable[[Equation, Sequence[int], Collection[int]], bool]
"""Whether an operator's partial sums take another buffer beside summands and result. Takes the
operator, the number of pieces into which each dimension of the summands is cut, and the dimensions
that a reduce-scatter cuts further."""


def _always(mesh: DeviceMesh, scattered: Mapping[int, int], part: Value) -> bool:
    return True


def _never(root: Equation, cuts: Sequence[int], scattered: Collection[int]) -> bool:
    return False


@dataclass(frozen=True)
class TargetFacts:
    """What a target does with any program. Bytes are those of one device.

    - `target`: its name, as in `verify`.
    - `fusion`: the operators that are computed inside other kernels.

    Communication:

    - `moved_itemsizes`: by dtype the bytes per element that collectives move, if they differ from
      the dtype's own size.
    - `scatters_sums`, `sums_elsewhere`: see their types.
    - `copies_gathered_results`: a collective may not write a result into the donated argument that
      the result takes over (`kiwi.problem.copies.GatheredResult`).
    - `sums_beside_one_kernel`: partial sums move only beside the kernel behind which they are
      reduce-scattered. Without such a kernel the device waits for them.
    - `combined_sums_bytes`: sums up to this size are combined with others, and waited for.
    - `adds_sums_first`: partial sums that are only added to each other are added on each device
      first, and exchanged as one (`kiwi.kernels.joined_sums`).
    - `pipelines_matmuls`: a matmul runs while its operands are gathered and its result is
      scattered.

    Emission:

    - `makes_constants_early`: large constants are computed at the start of the step, unless a
      barrier prevents it.
    - `hoists_copies`: copies from and to the host are moved before barriers. Plans then copy
      elements of buffers there, at indices that the compiler does not know.
    - `transposes_products`: results of matmuls may be laid out in an order that the matmul does not
      write, unless the compiler is told not to.
    - `row_major_primitives`: primitives whose operands and results have to lie row-major. The
      compiler gives them layouts that their kernels refuse when they run.
    - `ragged_densely`: products by groups are written as one matmul over all groups. The compiler
      makes that of them anyway, but partitions neither rows nor groups before it does.
    - `copies_ahead`: programs are tried in which copies begin ahead of their readers.
    - `schedules_for_memory`: the compiler's scheduler keeps memory low, so that plans begin with
      only the barriers that they need. Otherwise every step has one.

    Host memory:

    - `offloads`: values that plans offload leave the device in the compiled program.
      `offloads_in_scans`: so do values that scans stack, and they come back unchanged.
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
        """Bytes per element that collectives move of a value."""
        dtype = str(value.dtype)
        return dict(self.moved_itemsizes).get(dtype, value.itemsize)

    def may_offload(self, *, in_scan: bool) -> bool:
        """Whether a value may be offloaded."""
        return self.offloads and (self.offloads_in_scans or not in_scan)
