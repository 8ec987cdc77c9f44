"""Manual computations: a `shard_map` fixes the layouts of its operands and results.

Such a unit has one strategy, between the layouts of its `in_specs` and `out_specs`. Its mesh may
have other axes than the plan's, see `kiwi.mesh.axes_of_mesh`. Its body is written for one device.
The collectives inside are priced like any others.
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
"""By name of an axis of a `shard_map`'s mesh, the axes of the plan's mesh whose product it is."""

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
"""The collective of each primitive."""


@dataclass(frozen=True)
class GivenLayouts:
    """The layouts of a unit's reads and results that the program fixes, and its collectives.
    `collectives` are those of one run, each with the seconds of all its repetitions. `stored` says
    of each result whether it has a buffer of its own."""

    reads: tuple[TensorSharding, ...]
    results: tuple[TensorSharding, ...]
    collectives: tuple[Collective, ...]
    stored: tuple[bool, ...]


def given_layouts(units: UnitGraph, unit: Unit, mesh: DeviceMesh) -> GivenLayouts | None:
    """The layouts that a unit's `shard_map` fixes; None for all other units, and for a `shard_map`
    on another mesh."""
    equation = units.graph.program.equations[unit.root]
    layouts = manual_layouts(units.graph.program, equation, mesh)
    axes = None if layouts is None else axes_of_mesh(mesh, equation.jaxpr_eqn.params["mesh"])
    if layouts is None or axes is None:
        return None
    repeated = units.trips(unit)
    collectives = (
        replace(c, seconds=repeated * c.seconds)
        for region in inner_jaxprs(equation.jaxpr_eqn)
        for c in _collectives(region, mesh, axes, 1)
    )
    return GivenLayouts(
        tuple(layouts[value] for value, _ in unit.rule.reads),
        tuple(layouts[output] for output in unit.outputs),
        tuple(collectives),
        _stored(units, unit),
    )


def _stored(units: UnitGraph, unit: Unit) -> tuple[bool, ...]:
    """Of each result of a unit, whether it has a buffer of its own."""
    program = units.graph.program
    equation = program.equations[unit.root]

    def is_argument(number: int) -> bool:
        value = equation.inputs[number]
        return not isinstance(value, int) or program.values[value].producer is None

    is_stored = equation.kept(stored_results(equation.jaxpr_eqn, is_argument))
    by_output = dict(zip(equation.outputs, is_stored, strict=True))
    return tuple(by_output[output] for output in unit.outputs)


def region_name(equation: Equation) -> str:
    """A region in words; for a `shard_map` also its line and its mesh."""
    if equation.name != "shard_map":
        return equation.name
    return f"{placed(equation)} over the mesh {mesh_text(equation.jaxpr_eqn.params['mesh'])}"


def placed(equation: Equation) -> str:
    """A region and where it stands."""
    line = f" at {equation.source_line}" if equation.source_line else ""
    return f"{equation.name}{line}"


def mesh_text(mesh: Any) -> str:
    """A mesh of jax in words: its axes and their sizes."""
    axes = zip(mesh.axis_names, mesh.axis_sizes, strict=True)
    return ", ".join(f"{name}={size}" for name, size in axes)


def manual_layouts(
    program: Program, equation: Equation, mesh: DeviceMesh
) -> dict[int, TensorSharding] | None:
    """The layouts, by value, of a `shard_map`'s operands and results; None for all other equations,
    and for one on another mesh. An operand that is read in several layouts is wanted in the first.
    """
    eqn = equation.jaxpr_eqn
    if equation.name != "shard_map":
        return None
    axes = axes_of_mesh(mesh, eqn.params["mesh"])
    if axes is None:
        return None
    kept = [
        spec
        for spec, v in zip(eqn.params["out_specs"], eqn.outvars, strict=True)
        if not isinstance(v, jex.DropVar)
    ]
    pairs = [
        *zip(equation.inputs, eqn.params["in_specs"], strict=True),
        *zip(equation.outputs, kept, strict=True),
    ]
    layouts: dict[int, TensorSharding] = {}
    for value, spec in pairs:
        if not isinstance(value, int) or value in layouts:
            continue
        info = program.values[value]
        whole = TensorSharding.replicated(len(info.shape))
        layouts[value] = whole if info.is_extended else _layout(spec, len(info.shape), axes)
    return layouts


def _layout(spec: Any, rank: int, axes: Axes) -> TensorSharding:
    """A `PartitionSpec` over the axes of the region's mesh, translated to the plan's."""
    entries = [*spec, *[None] * (rank - len(spec))]
    return TensorSharding(tuple(_plan_axes(entry, axes) for entry in entries))


def _plan_axes(entry: Any, axes: Axes) -> tuple[int, ...]:
    names = entry if isinstance(entry, tuple | list) else (entry,)
    return tuple(axis for name in names if name in axes for axis in axes[name])


def _collectives(jaxpr: Any, mesh: DeviceMesh, axes: Axes, repeated: int) -> Iterator[Collective]:
    for eqn in jaxpr.eqns:
        for region in inner_jaxprs(eqn):
            yield from _collectives(region, mesh, axes, repeated * trips(eqn))
        kind = _KINDS.get(eqn.primitive.name)
        if kind is None:
            continue
        sides = ([v.aval for v in side] for side in (eqn.invars, eqn.outvars))
        size_bytes = max(sum(prod(a.shape) * a.dtype.itemsize for a in side) for side in sides)
        names = eqn.params["axes"] if "axes" in eqn.params else eqn.params["axis_name"]
        once = collective(kind, mesh, _plan_axes(names, axes), size_bytes)
        if once.axes:
            yield replace(once, seconds=repeated * once.seconds)
