"""XLA:TPU computes the operand of a gather to a buffer of its own where that is a map.

Logits in bfloat16 that a loss converts to float32 have a buffer in float32 while the chosen ones
are taken from it (`take_along_axis`); other readers convert for themselves.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import jax
import jax.numpy as jnp

from kiwi.hlo.equation_kinds import is_map
from kiwi.hlo.rule import Dims
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.kernels.graph import KernelGraph
from kiwi.kernels.kernel import Workspace
from kiwi.kernels.storage import MinorDimensions
from kiwi.mesh.tiles import tiled_elements
from kiwi.targets.rule import Rule
from kiwi.targets.witness import Example, Witness, array

_SAME = frozenset({"reshape"})


@dataclass(frozen=True)
class GatheredTensor:
    """A tensor; `dims` are its factors, `minor` as of `tiled_elements`."""

    shape: tuple[int, ...]
    itemsize: int
    dims: Dims
    minor: MinorDimensions | None

    def local_bytes(self, shards: Mapping[int, int]) -> int:
        """Of one device's part, where factors are cut into so many pieces."""
        cuts = (prod(shards.get(factor, 1) for factor in factors) for factors in self.dims)
        sizes = [size // cut for size, cut in zip(self.shape, cuts, strict=True)]
        return self.itemsize * tiled_elements(sizes, self.minor)


@dataclass(frozen=True)
class GatheredMaps(Workspace):
    """The maps that a unit gathers from."""

    tensors: tuple[GatheredTensor, ...]

    def buffers(
        self, shards: Mapping[int, int], read_bytes: Sequence[int], result_bytes: int
    ) -> tuple[int, ...]:
        """Local bytes of each."""
        return tuple(tensor.local_bytes(shards) for tensor in self.tensors)


def gathered_maps(graph: KernelGraph, unit: Unit) -> GatheredMaps:
    """Those of a unit."""
    dims_of = {value: dims for results in unit.rule.operator_results for value, dims in results}
    values, minor = graph.units.graph.program.values, graph.storage.minor
    gathered = dict.fromkeys(_gathered(graph.units, unit))
    tensors = (
        GatheredTensor(
            values[gathered_value].shape,
            values[gathered_value].itemsize,
            dims_of[gathered_value],
            minor.get(gathered_value),
        )
        for gathered_value in gathered
    )
    return GatheredMaps(tuple(tensors))


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


def _apply(graph: KernelGraph) -> KernelGraph:
    workspaces = {unit.index: gathered_maps(graph, unit) for unit in graph.units.units}
    return graph.stating("workspace", {k: w for k, w in workspaces.items() if w.tensors})


_ROWS, _CLASSES = 512, 4096


def _chosen(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.take_along_axis(logits.astype(jnp.float32), labels, 1)


_LABELS = array(_ROWS, 16, dtype="int32")

WITNESS = Witness(
    says="The logits have a buffer in float32.",
    example=Example(_chosen, (array(_ROWS, _CLASSES, dtype="bfloat16"), _LABELS)),
    shows=lambda module: module.temporaries_of(4 * _ROWS * _CLASSES) == 1,
    control=Example(_chosen, (array(_ROWS, _CLASSES), _LABELS)),
)


RULE = Rule(
    name="tpu_gathered_maps",
    does="A map that a gather reads has a buffer while elements are taken from it.",
    component="fusion of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("tests/targets/test_tpu_gathered_maps.py",),
    witness=WITNESS,
    apply=_apply,
)
