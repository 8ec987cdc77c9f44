"""XLA:TPU computes a map to a separate buffer if a gather reads it.

For example, a loss converts logits in bfloat16 to float32. While the chosen logits are gathered
(`take_along_axis`), the logits have a buffer in float32. Other readers convert the logits
themselves.
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
"""The opcodes of maps whose result is the buffer of the operand."""


@dataclass(frozen=True)
class GatheredTensor:
    """A map that a unit gathers from.

    - `shape`, `itemsize`: the global shape of the map, and the bytes of an element.
    - `dims`: the factors of its dimensions.
    - `minor`: its minor dimensions, as in `tiled_elements`.
    """

    shape: tuple[int, ...]
    itemsize: int
    dims: Dims
    minor: MinorDimensions | None

    def local_bytes(self, shards: Mapping[int, int]) -> int:
        """Returns the bytes of one device's part, with the padding of tiles. `shards`: the number
        of pieces into which each factor is cut."""
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
        """Returns the local bytes of each map, see `Workspace.buffers`."""
        return tuple(tensor.local_bytes(shards) for tensor in self.tensors)


def gathered_maps(graph: KernelGraph, unit: Unit) -> GatheredMaps:
    """Returns the maps that a unit gathers from."""
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
    """Yields the values that maps of a unit compute and gathers of the unit read."""
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
    return graph.stating(
        "workspace",
        {index: workspace for index, workspace in workspaces.items() if workspace.tensors},
    )


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
