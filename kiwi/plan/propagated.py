"""The planner "xla": a program as it is, with the shardings that XLA gives its values by itself.

XLA lays out what the caller leaves open by Shardy's propagation from what is given, on a program
that it has simplified before. So XLA itself is asked: the program is compiled for virtual CPU
devices with every value as a result, and the compiled program says how its results lie.
"""

from collections.abc import Mapping
from typing import Any

from jax.sharding import PartitionSpec

from kiwi.errors import ShardingConflictError
from kiwi.hlo.lowering import all_values_function
from kiwi.hlo.program import Program
from kiwi.mesh import DeviceMesh, TensorSharding
from kiwi.plan.verify import Step, result_specs_on_cpu
from kiwi.strategy.build import Fixed


def propagated(program: Program, mesh: DeviceMesh, fixed: Fixed) -> dict[int, TensorSharding]:
    """By value index what XLA propagates from the shardings of `fixed`.

    Results that replace arguments are wanted in those arguments' shardings, as a caller asks for
    who feeds the state back. Values that are cut unevenly are left out.

    **Raises:** `CompileCheckError` if XLA refuses the program.
    """
    arguments = {v: mesh.partition_spec(s) for v, s in fixed.arguments.items()}
    results: dict[int, PartitionSpec] = {}
    for position, value in enumerate(program.results):
        wanted = fixed.results.get(position)
        if wanted is None and position in fixed.carried:
            wanted = fixed.arguments.get(fixed.carried[position])
        if wanted is not None and isinstance(value, int) and value not in program.arguments:
            results.setdefault(value, mesh.partition_spec(wanted))
    specs = propagated_specs(program, mesh, arguments, results)
    found = {v: _sharding(spec, len(program.values[v].shape), mesh) for v, spec in specs.items()}
    return {v: s for v, s in found.items() if s.divides(program.values[v].shape, mesh.shape)}


def propagated_specs(
    program: Program,
    mesh: DeviceMesh,
    arguments: Mapping[int, PartitionSpec],
    results: Mapping[int, PartitionSpec],
) -> dict[int, PartitionSpec]:
    """By value index how the values of a program lie.

    `arguments` gives the shardings of arguments and constants by value index, those left out are
    open; `results` those that are wanted of results, by value index as well. A value whose
    sharding cannot be said in axes of the mesh is left out.
    """
    inputs, every_value = all_values_function(program)
    step = Step(
        every_value,
        [program.values[v].shape_dtype for v in inputs],
        mesh,
        [arguments.get(v) for v in inputs],
        [results.get(v) for v in range(len(program.values))],
        donated=(),
    )
    found = result_specs_on_cpu(step)
    return {v: spec for v, spec in enumerate(found) if spec is not None}


def _sharding(spec: PartitionSpec, rank: int, mesh: DeviceMesh) -> TensorSharding:
    """Axes of size 1 are dropped: they cut nothing."""
    position = {name: k for k, name in enumerate(mesh.axis_names)}
    names = [_names(entry) for entry in (*spec, *[None] * (rank - len(spec)))]
    unknown = {n for dim in names for n in dim} - position.keys()
    if unknown:
        raise ShardingConflictError(f"Axes {sorted(unknown)} are not axes of the mesh.")
    real = set(mesh.nontrivial_axes)
    return TensorSharding(
        tuple(tuple(position[n] for n in dim if position[n] in real) for dim in names)
    )


def _names(entry: Any) -> tuple[str, ...]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)
