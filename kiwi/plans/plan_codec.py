"""Conversion of a plan's parts to plain data: a sharding as lists of mesh axis names, one list for
each dimension; an interval as `[start, end, bytes]`; a `PartitionSpec` as the list of its entries.
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
"""Stands for `PartitionSpec.UNCONSTRAINED`."""

_DERIVED: dict[type, tuple[str, ...]] = {
    SimulatedTime: ("by_unit",),  # Before the programs that have one.
    CompiledProgram: ("compile_seconds", "schedule"),  # Equal plans have equal documents.
    Decision: ("shape", "sharding", "seconds"),
    DeviceMesh: ("table",),  # Tables are long, and stay in their own files.
    Estimate: ("buffers", "times"),
}
"""Fields that are left out because other parts of the document determine them."""


@functools.lru_cache(maxsize=8)
def plan_converter(axis_names: tuple[str, ...]) -> cattrs.Converter:
    """A converter for the parts of a plan on a mesh with these axes. It ignores keys that are no
    fields: an object of a document may hold several parts, as an operator does."""
    by, names = converter(forbid_extra_keys=False), axis_names
    by.register_unstructure_hook(TensorSharding, lambda sharding: axes(sharding, names))
    by.register_structure_hook(
        TensorSharding,
        lambda dims, _: TensorSharding(tuple(tuple(map(names.index, dim)) for dim in dims)),
    )
    by.register_unstructure_hook(Interval, lambda i: [int(i.start), int(i.end), int(i.bytes)])
    by.register_structure_hook(Interval, lambda numbers, _: Interval(*numbers))
    by.register_unstructure_hook(PartitionSpec, _entries)
    by.register_unstructure_hook(NamedSharding, lambda sharding: _entries(sharding.spec))
    for kind in (PartitionSpec | None, PartitionSpec | NamedSharding | None):
        by.register_structure_hook(kind, lambda entries, _: partition_spec(entries))
    # A class takes the hooks of its fields when its own is made.
    for kind, derived in _DERIVED.items():
        omitted: Any = {name: override(omit=True) for name in derived}
        by.register_unstructure_hook(kind, make_dict_unstructure_fn(kind, by, **omitted))
    return by


def mesh_of(document: Mapping[str, Any]) -> DeviceMesh:
    """The mesh of a plan's document, with the hardware that the plan was priced for."""
    parts = {"hardware": document["hardware"], "links": document["links"]}
    mesh = document["mesh"]
    return from_plain({**mesh, **parts}, DeviceMesh, plan_converter(tuple(mesh["axis_names"])))


def axes(sharding: TensorSharding, names: Sequence[str]) -> list[list[str]]:
    """A sharding as lists of axis names."""
    return [[names[axis] for axis in dim] for dim in sharding.dims]


def _entries(spec: PartitionSpec) -> list[Any]:
    entries = (OPEN if e is PartitionSpec.UNCONSTRAINED else e for e in spec)
    return [list(e) if isinstance(e, tuple) else e for e in entries]


def partition_spec(entries: Sequence[Any] | None) -> PartitionSpec | None:
    """A `PartitionSpec` from its entries, or from lists of axis names."""
    return None if entries is None else PartitionSpec(*map(_entry, entries))


def _entry(entry: Any) -> Any:
    if entry == OPEN:
        return PartitionSpec.UNCONSTRAINED
    if not isinstance(entry, list):
        return entry
    return entry[0] if len(entry) == 1 else tuple(entry) or None
