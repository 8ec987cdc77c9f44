"""When XLA:TPU reduce-scatters partial sums, and beside which kernel.

- Not over two chips, all of a square of 4 x 4 or more, or of a slice of three dimensions; and only
  in pieces that tiles can be cut into (`SCATTERED`).
- A reduce-scatter of a gradient stands behind the next operator of the backward pass that does not
  read it, another product as a rule, and runs beside that kernel alone (`BEHIND`).
- Sums of up to 8 MiB are combined with others, and waited for (`COMBINED`). Those of attention's
  projections have 4 MiB each.
- A collective may not write a result where the donated argument is that it takes over
  (`GATHERED_RESULTS`).
"""

from collections.abc import Mapping
from math import prod

from kiwi.hlo.graph import Phase
from kiwi.hlo.in_place import is_of_library
from kiwi.hlo.program import Value
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.mesh import DeviceMesh
from kiwi.mesh.tiles import cuts_tiles
from kiwi.targets.rule import Rule, of_units, stating

_TWO_CORES = frozenset({"v4", "v5p"})
_COMBINED_BYTES = 8 * 2**20
_OBSERVED = "jax 0.10.2, libtpu 0.0.42.1, v5e and v5p"


def scatters_sums(mesh: DeviceMesh, scattered: Mapping[int, int], part: Value) -> bool:
    """Whether it reduce-scatters; see `kiwi.kernels.facts.ScattersSums`."""
    interconnect = mesh.hardware.interconnect
    cores = 1 + (interconnect is not None and interconnect.generation in _TWO_CORES)
    dims, count = set(scattered.values()), prod(mesh.shape[axis] for axis in scattered)
    pieces = (cuts_tiles(part.shape, d, count, part.itemsize, cores) for d in dims)
    if count == 2 or not all(pieces):
        return False
    extents = () if mesh.topology is None else mesh.topology.extents
    longer = [extent for extent in extents if extent > 1]
    is_whole = count == mesh.size
    is_square = len(longer) == 2 and longer[0] == longer[1] > 2
    return not is_whole or len(dims) > 1 or not (is_square or longer[2:])


SCATTERED = Rule(
    name="tpu_scattered_sums",
    does="Partial sums are reduce-scattered in pieces of whole tiles, over part of a slice.",
    component="ReduceScatterCreator of XLA:TPU",
    observed=_OBSERVED,
    evidence=("tests/xla/tpu", "benchmarks/resharding"),
    states=stating(scatters_sums=scatters_sums),
)


def sums_behind(units: UnitGraph, unit: Unit) -> int | None:
    """The next operator of the backward pass, if it does not read the gradient."""
    if unit.phase is not Phase.BACKWARD or not is_of_library(units.graph, unit):
        return None
    following = (u for u in units.units[unit.index + 1 :] if u.phase is not Phase.UPDATE)
    other = next(following, None)
    if other is None or other.loop != unit.loop:
        return None
    return other.index if set(unit.outputs).isdisjoint(other.reads) else None


def _behind(units: UnitGraph) -> dict[int, int]:
    later = {unit.index: sums_behind(units, unit) for unit in units.units}
    return {index: behind for index, behind in later.items() if behind is not None}


BEHIND = Rule(
    name="tpu_sums_behind",
    does="The reduce-scatter of a gradient runs beside the next operator of the backward pass "
    "alone.",
    component="LatencyHidingScheduler of XLA:TPU",
    observed=_OBSERVED,
    evidence=("tests/xla/tpu", "benchmarks/fidelity"),
    states=stating(sums_beside_one_kernel=True),
    apply=of_units("sums_behind", _behind),
)

COMBINED = Rule(
    name="tpu_combined_sums",
    does="Sums of up to 8 MiB are combined with others, and waited for.",
    component="AllReduceCombiner of XLA:TPU",
    observed=_OBSERVED,
    evidence=("benchmarks/schedules",),
    states=stating(combined_sums_bytes=_COMBINED_BYTES),
)

GATHERED_RESULTS = Rule(
    name="tpu_gathered_results",
    does="A collective does not write a result where the donated argument is that it takes over.",
    component="copy insertion of XLA:TPU",
    observed=_OBSERVED,
    evidence=("tests/xla/tpu",),
    states=stating(copies_gathered_results=True),
)
