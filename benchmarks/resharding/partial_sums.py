"""Reduction of a matmul's partial sums, predicted and compiled, for every strategy."""

from dataclasses import dataclass

import jax

from benchmarks.resharding.compiled import Target, Uses, agree
from kiwi.hlo.graph import HloGraph
from kiwi.hlo.grouping import build_units
from kiwi.hlo.lowering import lower
from kiwi.hlo.tracing import trace
from kiwi.mesh import DeviceMesh
from kiwi.problem.strategies import ShardingStrategy, enumerate_strategies
from kiwi.targets.registry import target_named
from kiwi.xla.read.collectives import CollectiveUse, by_kind


@dataclass(frozen=True)
class Reduced:
    """One strategy with partial sums. `idle`: whether the strategy does not use some mesh axis."""

    mesh: DeviceMesh
    strategy: ShardingStrategy
    predicted: Uses
    compiled: Uses
    idle: bool

    @property
    def agrees(self) -> bool:
        """Whether the kinds are equal, and bytes are within the tolerance."""
        return agree(self.predicted, self.compiled)


def reduced_matmuls(mesh: DeviceMesh, target: Target, dtype: str = "float32") -> list[Reduced]:
    """Returns every strategy of a matmul on `mesh` that communicates."""
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape in ((512, 1024), (1024, 256))]
    graph: HloGraph = lower(trace(lambda x, w: [x @ w], shapes))
    units = build_units(graph)
    (unit,) = units.units
    reduced = []
    kernels = target_named(target.name).kernels(units, mesh.hardware)
    for strategy in enumerate_strategies(kernels, unit, mesh):
        if strategy.collectives:
            (result,) = strategy.results
            compiled = target.uses(lambda x, w: x @ w, mesh, shapes, strategy.reads, result)
            used = {axis for read in strategy.reads for axis in read.axes_used}
            idle = used != set(mesh.nontrivial_axes)
            reduced.append(Reduced(mesh, strategy, _uses(strategy), by_kind(compiled), idle))
    return reduced


def _uses(strategy: ShardingStrategy) -> Uses:
    uses: dict[str, CollectiveUse] = {}
    for collective in strategy.collectives:
        use = CollectiveUse(1, collective.bytes)
        uses[collective.kind] = uses.get(collective.kind, CollectiveUse(0, 0)) + use
    return uses
