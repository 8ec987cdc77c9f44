"""What XLA:TPU computes to a buffer of its own within a unit, where other compilers fuse it.

- A `pad` between the elements of its operand (interior padding), as the gradient of a strided slice
  has it and an associative scan interleaves with.
- The operand of a `reduce_window` or a `select_and_scatter`, which is a map of what the unit reads.

Observed with jax 0.10.2 and libtpu 0.0.42 for v5e (a state-space model and a convnet of
`benchmarks/fidelity`); `tests/xla/tpu/test_unfused_operands.py` holds both.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from kiwi.hlo.fusion import is_map
from kiwi.hlo.program import Equation
from kiwi.hlo.rule import Dims
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.xla.rules.base import CopiedOperands
from kiwi.xla.tpu.buffers import buffers_of, tiled_elements

_WINDOWED = frozenset({"reduce_window", "select_and_scatter"})


@dataclass(frozen=True)
class UnfusedOperands(CopiedOperands):
    """What a unit computes apart."""

    found: tuple["_Apart", ...]

    @classmethod
    def of(cls, units: UnitGraph, unit: Unit) -> "UnfusedOperands":
        """Those of a unit."""
        dims_of = {value: dims for own in unit.rule.operator_results for value, dims in own}
        values, images = units.graph.program.values, buffers_of(units).images
        found = dict.fromkeys(_unfused(units, unit))
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


def _unfused(units: UnitGraph, unit: Unit) -> Iterator[int]:
    graph = units.graph
    for index in unit.equations:
        equation = graph.program.equations[index]
        if index != unit.root and _interleaves(equation):
            yield from equation.outputs
        elif graph.opcodes[index] & _WINDOWED:
            for value in equation.reads:
                producer = graph.program.values[value].producer
                if producer in unit.equations and is_map(graph, producer):
                    yield value


def _interleaves(equation: Equation) -> bool:
    if equation.name != "pad":
        return False
    return any(interior for _, _, interior in equation.jaxpr_eqn.params["padding_config"])
