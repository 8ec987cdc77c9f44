"""The planner "xla": a program as it is, with the shardings that XLA gives its values by itself."""

from jax.sharding import PartitionSpec

from kiwi.errors import ShardingConflictError
from kiwi.hlo.program import Program
from kiwi.hlo.propagation import propagated_axes
from kiwi.mesh import DeviceMesh, TensorSharding
from kiwi.strategy.build import Fixed


def propagated(program: Program, mesh: DeviceMesh, fixed: Fixed) -> dict[int, TensorSharding]:
    """By value index what Shardy propagates from the shardings of `fixed`.

    Results that replace arguments are wanted in those arguments' shardings, as a caller asks for
    who feeds the state back. Values that are cut unevenly are left out.
    """
    arguments = {v: mesh.partition_spec(s) for v, s in fixed.arguments.items()}
    results: dict[int, PartitionSpec] = {}
    for position, value in enumerate(program.results):
        wanted = fixed.results.get(position)
        if wanted is None and position in fixed.carried:
            wanted = fixed.arguments.get(fixed.carried[position])
        if wanted is not None and isinstance(value, int) and value not in program.arguments:
            results.setdefault(value, mesh.partition_spec(wanted))
    axes = propagated_axes(program, mesh.abstract_mesh(), arguments, results)
    found = {v: _sharding(names, mesh) for v, names in axes.items()}
    return {v: s for v, s in found.items() if s.divides(program.values[v].shape, mesh.shape)}


def _sharding(names: tuple[tuple[str, ...], ...], mesh: DeviceMesh) -> TensorSharding:
    """Axes of size 1 are dropped: they cut nothing."""
    position = {name: k for k, name in enumerate(mesh.axis_names)}
    unknown = {n for dim in names for n in dim} - position.keys()
    if unknown:
        raise ShardingConflictError(f"Axes {sorted(unknown)} are not axes of the mesh.")
    real = set(mesh.nontrivial_axes)
    return TensorSharding(
        tuple(tuple(position[n] for n in dim if position[n] in real) for dim in names)
    )
