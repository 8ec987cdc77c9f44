"""The operand of a gather, which XLA:TPU computes to a buffer of its own where it is a map.

Logits in bfloat16 that a loss converts to float32 have a buffer in float32 while the chosen ones
are taken from it (`take_along_axis`); other readers convert for themselves. Observed with jax
0.10.2 and libtpu 0.0.42.1 for v5e (`examples/llama.py`); `tests/xla/tpu/test_gathered_maps.py`
holds it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from kiwi.hlo.equation_kinds import is_map
from kiwi.hlo.rule import Dims
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.mesh.tiles import tiled_elements
from kiwi.xla.rules.base import Workspace
from kiwi.xla.tpu.buffers import buffers_of

_SAME = frozenset({"reshape"})


@dataclass(frozen=True)
class GatheredMaps(Workspace):
    """The maps that a unit gathers from."""

    found: tuple["_Apart", ...]

    @classmethod
    def of(cls, units: UnitGraph, unit: Unit) -> "GatheredMaps":
        """Those of a unit."""
        dims_of = {value: dims for own in unit.rule.operator_results for value, dims in own}
        values, images = units.graph.program.values, buffers_of(units).images
        found = dict.fromkeys(_gathered(units, unit))
        return cls(
            tuple(
                _Apart(values[v].shape, values[v].itemsize, dims_of[v], images.get(v))
                for v in found
            )
        )

    def buffers(
        self, shards: Mapping[int, int], read_bytes: Sequence[int], result_bytes: int
    ) -> tuple[int, ...]:
        """Local bytes of each."""
        return tuple(each.local_bytes(shards) for each in self.found)


@dataclass(frozen=True)
class _Apart:
    """A tensor; `dims` are its factors, `minor` as of `tiled_elements`."""

    shape: tuple[int, ...]
    itemsize: int
    dims: Dims
    minor: tuple[int, int] | None

    def local_bytes(self, shards: Mapping[int, int]) -> int:
        cuts = (prod(shards.get(f, 1) for f in factors) for factors in self.dims)
        sizes = [size // cut for size, cut in zip(self.shape, cuts, strict=True)]
        return self.itemsize * tiled_elements(sizes, self.minor)


def _gathered(units: UnitGraph, unit: Unit) -> Iterator[int]:
    graph = units.graph
    for index in unit.equations:
        if "gather" not in graph.opcodes[index] or not graph.program.equations[index].reads:
            continue
        operand = graph.program.equations[index].inputs[0]
        if not isinstance(operand, int):
            continue
        producer = graph.program.values[operand].producer
        if producer not in unit.equations or not is_map(graph, producer):
            continue
        if graph.opcodes[producer] != _SAME and not graph.equations[producer].is_constant:
            yield operand
