"""Manual computations: a `shard_map` fixes the layouts of its operands and results.

A unit that is a `shard_map` has one strategy, with the layouts of its `in_specs` and `out_specs`.
The mesh of the `shard_map` may have other axes than the plan's mesh (`kiwi.mesh.axes_of_mesh`). Its
body is written for one device. The collectives inside are priced like any others.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from jax.extend import core as jex

from kiwi.hlo.program import Equation, Program
from kiwi.hlo.regions.memory import stored_results
from kiwi.hlo.regions.work import inner_jaxprs, trips
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.mesh import Collective, DeviceMesh, TensorSharding, axes_of_mesh
from kiwi.mesh.collective_kinds import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    COLLECTIVE_PERMUTE,
    REDUCE_SCATTER,
)
from kiwi.mesh.collectives import collective

Axes = Mapping[Hashable, tuple[int, ...]]
"""For each axis of a `shard_map`'s mesh, by name, the axes of the plan's mesh whose product it
is."""

_KINDS = {
    "all_gather": ALL_GATHER,
    "all_gather_invariant": ALL_GATHER,
    "all_to_all": ALL_TO_ALL,
    "pmax": ALL_REDUCE,
    "pmin": ALL_REDUCE,
    "ppermute": COLLECTIVE_PERMUTE,
    "psum": ALL_REDUCE,
    "psum_invariant": ALL_REDUCE,
    "reduce_scatter": REDUCE_SCATTER,
}
"""The kind of collective of each primitive."""


@dataclass(frozen=True)
class GivenLayouts:
    """The layouts of a unit's reads and results that the program fixes, and the unit's collectives.

    - `collectives`: the collectives of one run, each with the seconds of all its repetitions in the
      step.
    - `stored`: for each result, whether it has a buffer of its own.
    """

    reads: tuple[TensorSharding, ...]
    results: tuple[TensorSharding, ...]
    collectives: tuple[Collective, ...]
    stored: tuple[bool, ...]


def given_layouts(units: UnitGraph, unit: Unit, mesh: DeviceMesh) -> GivenLayouts | None:
    """Returns the layouts that a unit's `shard_map` fixes; None for any other unit, and for a
    `shard_map` whose mesh does not match the plan's."""
    equation = units.graph.program.equations[unit.root]
    layouts = manual_layouts(units.graph.program, equation, mesh)
    axes = None if layouts is None else axes_of_mesh(mesh, equation.jaxpr_eqn.params["mesh"])
    if layouts is None or axes is None:
        return None
    repeated = units.trips(unit)
    collectives = (
        replace(once, seconds=repeated * once.seconds)
        for region in inner_jaxprs(equation.jaxpr_eqn)
        for once in _collectives(region, mesh, axes, 1)
    )
    return GivenLayouts(
        tuple(layouts[value] for value, _ in unit.rule.reads),
        tuple(layouts[output] for output in unit.outputs),
        tuple(collectives),
        _stored(units, unit),
    )


def _stored(units: UnitGraph, unit: Unit) -> tuple[bool, ...]:
    """Returns, for each result of a unit, whether it has a buffer of its own."""
    program = units.graph.program
    equation = program.equations[unit.root]

    def is_argument(number: int) -> bool:
        value = equation.inputs[number]
        return not isinstance(value, int) or program.values[value].producer is None

    is_stored = equation.kept(stored_results(equation.jaxpr_eqn, is_argument))
    by_output = dict(zip(equation.outputs, is_stored, strict=True))
    return tuple(by_output[output] for output in unit.outputs)


def region_name(equation: Equation) -> str:
    """Returns the name of a region; for a `shard_map` also its source line and its mesh."""
    if equation.name != "shard_map":
        return equation.name
    return f"{placed(equation)} over the mesh {mesh_text(equation.jaxpr_eqn.params['mesh'])}"


def placed(equation: Equation) -> str:
    """Returns the name of a region and its source line, if known."""
    line = f" at {equation.source_line}" if equation.source_line else ""
    return f"{equation.name}{line}"


def mesh_text(mesh: Any) -> str:
    """Returns the axes of a JAX mesh and their sizes as text, such as "data=4, model=2"."""
    axes = zip(mesh.axis_names, mesh.axis_sizes, strict=True)
    return ", ".join(f"{name}={size}" for name, size in axes)


def manual_layouts(
    program: Program, equation: Equation, mesh: DeviceMesh
) -> dict[int, TensorSharding] | None:
    """Returns the layouts of a `shard_map`'s operands and results, by value index; None for any
    other equation, and for a `shard_map` whose mesh does not match the plan's. For an operand that
    is read in several layouts, the first layout counts.
    """
    eqn = equation.jaxpr_eqn
    if equation.name != "shard_map":
        return None
    axes = axes_of_mesh(mesh, eqn.params["mesh"])
    if axes is None:
        return None
    specs_of_results = [
        spec
        for spec, var in zip(eqn.params["out_specs"], eqn.outvars, strict=True)
        if not isinstance(var, jex.DropVar)
    ]
    pairs = [
        *zip(equation.inputs, eqn.params["in_specs"], strict=True),
        *zip(equation.outputs, specs_of_results, strict=True),
    ]
    layouts: dict[int, TensorSharding] = {}
    for value, spec in pairs:
        if not isinstance(value, int) or value in layouts:
            continue
        info = program.values[value]
        replicated = TensorSharding.replicated(len(info.shape))
        layouts[value] = replicated if info.is_extended else _layout(spec, len(info.shape), axes)
    return layouts


def _layout(spec: Any, rank: int, axes: Axes) -> TensorSharding:
    """Returns the layout on the plan's mesh of a `PartitionSpec` over the axes of the region's
    mesh."""
    entries = [*spec, *[None] * (rank - len(spec))]
    return TensorSharding(tuple(_plan_axes(entry, axes) for entry in entries))


def _plan_axes(entry: Any, axes: Axes) -> tuple[int, ...]:
    names = entry if isinstance(entry, tuple | list) else (entry,)
    return tuple(axis for name in names if name in axes for axis in axes[name])


def _collectives(jaxpr: Any, mesh: DeviceMesh, axes: Axes, repeated: float) -> Iterator[Collective]:
    for eqn in jaxpr.eqns:
        for region in inner_jaxprs(eqn):
            yield from _collectives(region, mesh, axes, repeated * trips(eqn))
        kind = _KINDS.get(eqn.primitive.name)
        if kind is None:
            continue
        sides = ([var.aval for var in side] for side in (eqn.invars, eqn.outvars))
        size_bytes = max(
            sum(prod(aval.shape) * aval.dtype.itemsize for aval in side) for side in sides
        )
        names = eqn.params["axes"] if "axes" in eqn.params else eqn.params["axis_name"]
        once = collective(kind, mesh, _plan_axes(names, axes), size_bytes)
        if once.axes:
            yield replace(once, seconds=repeated * once.seconds, repeats=repeated)
