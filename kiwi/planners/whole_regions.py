"""Regions that every device runs whole, named in the error for a refused budget."""

from collections.abc import Iterator

from kiwi.errors import InfeasibleBudgetError
from kiwi.hlo.units import UnitGraph
from kiwi.mesh import DeviceMesh
from kiwi.problem.manual_computations import given_layouts, mesh_text, placed, region_name
from kiwi.sizes import format_bytes

LARGE_REGION = 0.05
"""A refusal does not name a region whose operands and results take less than this part of the
budget."""

MOST_NAMED = 3
"""A refusal names at most this many regions, the largest first."""


def naming_whole(
    error: InfeasibleBudgetError, units: UnitGraph, mesh: DeviceMesh, budget_bytes: int
) -> InfeasibleBudgetError:
    """Returns the error with such regions in its cause, if the operands and results of at least one
    take a large part of the budget; otherwise the error itself."""
    regions = sorted(_whole_regions(units, mesh), key=lambda region: -region[0])
    large = [region for region in regions if region[0] >= LARGE_REGION * budget_bytes]
    if not large or mesh.size == 1:
        return error
    named = dict.fromkeys(f"{text} ({format_bytes(size)})" for size, text, _ in large[:MOST_NAMED])
    meshes = dict.fromkeys(axes for _, _, axes in large if axes)
    suggestion = error.suggestion
    if meshes:
        suggestion = f"mesh=the mesh of the shard_map, {next(iter(meshes))}. {suggestion}"
    return error.changed(
        cause=f"Every device runs these whole: {'; '.join(named)}.", suggestion=suggestion
    )


def _whole_regions(units: UnitGraph, mesh: DeviceMesh) -> Iterator[tuple[int, str, str]]:
    """Yields, for each region that every device runs whole, the bytes of its operands and results,
    its name and place, and the axes of its mesh if it is a `shard_map` (otherwise an empty string).
    """
    program = units.graph.program
    for unit in units.units:
        equation = program.equations[unit.root]
        is_opaque = units.graph.equations[unit.root].is_region or equation.is_library_kernel
        if not is_opaque or equation.is_kernel:
            continue
        if given_layouts(units, unit, mesh) is not None:
            continue
        size_bytes = sum(program.values[value].size_bytes for value in {*unit.reads, *unit.outputs})
        if equation.name == "shard_map":
            axes = mesh_text(equation.jaxpr_eqn.params["mesh"])
            yield size_bytes, region_name(equation), axes
        else:
            yield size_bytes, placed(equation), ""
