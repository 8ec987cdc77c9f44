"""Conversion of a plan's parts to plain data and back.

A sharding becomes a list of lists of mesh axis names, one list for each dimension. An interval
becomes `[start, end, bytes]`. A `PartitionSpec` becomes the list of its entries.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import cattrs
from cattrs.gen import make_dict_unstructure_fn, override
from jax.sharding import NamedSharding, PartitionSpec

from kiwi.codec import converter, from_plain
from kiwi.interval import Interval
from kiwi.mesh import DeviceMesh, TensorSharding
from kiwi.plans.breakdown import Decision
from kiwi.plans.estimate import Estimate
from kiwi.xla.read.compiled_program import CompiledProgram
from kiwi.xla.simulated import SimulatedTime

OPEN = "?"
"""The entry that stands for `PartitionSpec.UNCONSTRAINED`."""

_DERIVED: dict[type, tuple[str, ...]] = {
    SimulatedTime: ("by_unit",),  # Before `CompiledProgram`, which has such a field.
    CompiledProgram: ("compile_seconds", "schedule"),  # Equal plans have equal documents.
    Decision: ("shape", "sharding", "seconds"),
    DeviceMesh: ("table",),  # Tables are long, and stay in their own files.
    Estimate: ("buffers", "times"),
}
"""The fields that are left out, because other parts of the document determine them or because they
would differ between equal plans."""


@functools.lru_cache(maxsize=8)
def plan_converter(axis_names: tuple[str, ...]) -> cattrs.Converter:
    """Returns a converter for the parts of a plan on a mesh with these axes. The converter ignores
    keys that are not fields, because an object of a document may hold several parts, as an operator
    does."""
    conversion, names = converter(forbid_extra_keys=False), axis_names
    conversion.register_unstructure_hook(TensorSharding, lambda sharding: axes(sharding, names))
    conversion.register_structure_hook(
        TensorSharding,
        lambda dims, _: TensorSharding(tuple(tuple(map(names.index, dim)) for dim in dims)),
    )
    conversion.register_unstructure_hook(
        Interval, lambda i: [int(i.start), int(i.end), int(i.bytes)]
    )
    conversion.register_structure_hook(Interval, lambda numbers, _: Interval(*numbers))
    conversion.register_unstructure_hook(PartitionSpec, _entries)
    conversion.register_unstructure_hook(NamedSharding, lambda sharding: _entries(sharding.spec))
    for kind in (PartitionSpec | None, PartitionSpec | NamedSharding | None):
        conversion.register_structure_hook(kind, lambda entries, _: partition_spec(entries))
    # The hook of a class takes over the hooks of its fields when it is made.
    for kind, derived in _DERIVED.items():
        omitted: Any = {name: override(omit=True) for name in derived}
        conversion.register_unstructure_hook(
            kind, make_dict_unstructure_fn(kind, conversion, **omitted)
        )
    return conversion


def mesh_of(document: Mapping[str, Any]) -> DeviceMesh:
    """Returns the mesh of a plan's document, with the hardware that the plan was priced for."""
    parts = {"hardware": document["hardware"], "links": document["links"]}
    mesh = document["mesh"]
    return from_plain({**mesh, **parts}, DeviceMesh, plan_converter(tuple(mesh["axis_names"])))


def axes(sharding: TensorSharding, names: Sequence[str]) -> list[list[str]]:
    """Returns a sharding as lists of axis names, one for each dimension."""
    return [[names[axis] for axis in dim] for dim in sharding.dims]


def _entries(spec: PartitionSpec) -> list[Any]:
    entries = (OPEN if entry is PartitionSpec.UNCONSTRAINED else entry for entry in spec)
    return [list(entry) if isinstance(entry, tuple) else entry for entry in entries]


def partition_spec(entries: Sequence[Any] | None) -> PartitionSpec | None:
    """Returns the `PartitionSpec` with the given entries or lists of axis names; None for None."""
    return None if entries is None else PartitionSpec(*map(_entry, entries))


def _entry(entry: Any) -> Any:
    if entry == OPEN:
        return PartitionSpec.UNCONSTRAINED
    if not isinstance(entry, list):
        return entry
    return entry[0] if len(entry) == 1 else tuple(entry) or None
