"""The shardings that XLA itself gives to the values of a program.

XLA lays out what the caller leaves open by Shardy's propagation from what is given. The same
passes are run here, on the program lowered with every value as a result.
"""

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from kiwi.hlo import jax_internals
from kiwi.hlo.lowering import all_values_function
from kiwi.hlo.program import Program


def propagated_axes(
    program: Program,
    mesh: "jax.sharding.AbstractMesh",
    arguments: Mapping[int, PartitionSpec],
    results: Mapping[int, PartitionSpec],
) -> dict[int, jax_internals.AxisLists]:
    """By value index the names of the mesh axes that shard each of its dimensions.

    `arguments` gives the shardings of arguments and constants by value index, those left out are
    open; `results` those that are wanted of results, by value index as well. A value of which
    Shardy cuts a dimension by a part of an axis is left out.
    """
    inputs, function = all_values_function(program)
    count = len(program.values)
    shard = lambda spec: None if spec is None else NamedSharding(mesh, spec)  # noqa: E731
    jitted = jax.jit(
        function,
        in_shardings=tuple(shard(arguments.get(v)) for v in inputs),
        out_shardings=[shard(results.get(v)) for v in range(count)],
        keep_unused=True,
    )
    shapes = [program.values[v].shape_dtype for v in inputs]
    module: Any = jitted.trace(*shapes).lower(lowering_platforms=("cpu",))
    module = module.compiler_ir("stablehlo")
    jax_internals.propagate_shardings(module)
    found = jax_internals.returned_shardings(module)
    return {v: axes for v, axes in enumerate(found) if axes is not None}
