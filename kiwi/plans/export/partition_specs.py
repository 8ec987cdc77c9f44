"""A plan's shardings for hand-written code: by pytree, by path, and as rules of logical axes.

**Rules** (logical axis → mesh axes) lay out parameters that name their dimensions ("embed", "mlp";
Flax's logical axes). A plan decides each parameter by itself. So a logical axis gets the mesh axes
that cut the most bytes along it. Parameters that lie differently under the rules are reported by
path.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import PartitionSpec

from kiwi.calls.constraints import matches, slash_path
from kiwi.errors import InvalidArgumentError
from kiwi.messages import topics
from kiwi.plans.record import PlanRecord

MeshAxes = str | tuple[str, ...] | None


@dataclass(frozen=True)
class PartitionSpecs:
    """The shardings of a plan.

    - `arguments`: a `PartitionSpec` per leaf in the structure of the arguments: a tuple of the
      positional arguments, or a pair (positional, keyword) if there are keyword arguments.
    - `results`: a `PartitionSpec` per leaf in the structure of the function's result.
    - `by_path`: path of an argument leaf, such as `state/params/w` → its `PartitionSpec`.
    """

    arguments: Any
    results: Any
    by_path: Mapping[str, PartitionSpec]

    def matching(self, pattern: str) -> dict[str, PartitionSpec]:
        """The shardings of arguments whose paths match a pattern of `kiwi.Constraints`."""
        return {path: spec for path, spec in self.by_path.items() if matches(pattern, path)}


@dataclass(frozen=True)
class LogicalRules:
    """Rules of logical axes.

    - `rules`: pairs (logical axis, mesh axes), as `flax.linen`'s `logical_axis_rules` takes them.
      The mesh axes are None for a logical axis that is not cut.
    - `conflicts`: path of an argument → (the plan's sharding, the sharding under the rules), for
      arguments whose shardings differ.
    """

    rules: tuple[tuple[str, MeshAxes], ...]
    conflicts: Mapping[str, tuple[PartitionSpec, PartitionSpec]]


def partition_specs(plan: PlanRecord) -> PartitionSpecs:
    """Returns the shardings of a plan, for `jax.jit`."""
    paths = (slash_path(path) for path in plan.traced.call.paths)
    by_path = dict(zip(paths, plan.step.in_specs, strict=True))
    return PartitionSpecs(plan.in_shardings, plan.out_shardings, by_path)


def logical_rules(plan: PlanRecord, logical_axes: Any = None) -> LogicalRules:
    """Returns the rules of logical axes that come nearest to a plan.

    `logical_axes`: a pytree with a tuple or a `PartitionSpec` of names, or None, for each argument
    leaf. It has the structure of the positional arguments, or is a pair (positional, keyword) if
    there are keyword arguments. By default, the names come from the planned arguments: from boxes
    with `names` and `value`, as `flax.linen.with_logical_partitioning` makes them, and from
    variables whose metadata name their dimensions, as in `flax.nnx`.

    **Raises:** `InvalidArgumentError` if no argument names its dimensions, or `logical_axes` does
    not fit the arguments.
    """
    names = _boxed_names(plan) if logical_axes is None else _given_names(plan, logical_axes)
    named = [
        _Named(slash_path(path), tuple(dims), spec, math.prod(shape.shape) * shape.dtype.itemsize)
        for path, dims, spec, shape in zip(
            plan.traced.call.paths, names, plan.step.in_specs, plan.traced.call.shapes, strict=True
        )
        if dims is not None and len(dims) == len(shape.shape)
    ]
    if not named:
        raise InvalidArgumentError(
            "No argument of the plan names its dimensions.",
            topic=topics.NO_LOGICAL_NAMES,
        )
    rules = tuple(_most_bytes(named).items())
    conflicts = {
        leaf.path: (leaf.planned, _under_rules(leaf.names, rules))
        for leaf in named
        if _entries(leaf.planned, len(leaf.names)) != tuple(_under_rules(leaf.names, rules))
    }
    return LogicalRules(rules, conflicts)


@dataclass(frozen=True)
class _Named:
    """An argument whose dimensions have names. The name of a dimension may be None."""

    path: str
    names: tuple[str | None, ...]
    planned: PartitionSpec
    size_bytes: int


def _most_bytes(named: Sequence[_Named]) -> dict[str, MeshAxes]:
    """Returns, for each logical axis in order of appearance, the mesh axes that cut most of its
    bytes.

    If two dimensions of a parameter have the same name, only one of them can take the mesh axis. So
    the other dimension, which is not cut, does not count.
    """
    votes: dict[str, dict[MeshAxes, int]] = defaultdict(lambda: defaultdict(int))
    for leaf in named:
        for name, axes in zip(leaf.names, _entries(leaf.planned, len(leaf.names)), strict=True):
            twice = leaf.names.count(name) > 1
            if name is not None and not (twice and axes is None):
                votes[name][axes] += leaf.size_bytes
    return {
        name: max(bytes_of_axes, key=lambda axes: bytes_of_axes[axes])
        for name, bytes_of_axes in votes.items()
    }


def specs_under_rules(args: Sequence[Any], rules: Sequence[tuple[str, MeshAxes]]) -> Any:
    """Returns the sharding of each argument leaf by rules of logical axes, in the arguments'
    pytree; None for a leaf that does not name its dimensions."""
    leaves, tree = jax.tree.flatten(tuple(args))
    names = _names_of_leaves(tree)
    specs = [
        _under_rules(dims, rules) if dims is not None and len(dims) == leaf.ndim else None
        for leaf, dims in zip(leaves, names, strict=True)
    ]
    return jax.tree.unflatten(tree, specs)


def _under_rules(
    names: Sequence[str | None], rules: Sequence[tuple[str, MeshAxes]]
) -> PartitionSpec:
    """Returns the sharding by rules, as Flax applies them: a mesh axis cuts at most one dimension,
    and earlier rules come first."""
    entries: list[MeshAxes] = [None] * len(names)
    used: set[str] = set()
    for logical, axes in rules:
        wanted = {axes} if isinstance(axes, str) else set(axes or ())
        is_open = logical in names and entries[names.index(logical)] is None
        if is_open and wanted and not wanted & used:
            entries[names.index(logical)] = axes
            used |= wanted
    return PartitionSpec(*entries)


def _entries(spec: PartitionSpec, rank: int) -> tuple[MeshAxes, ...]:
    return (*spec, *[None] * (rank - len(spec)))


def _boxed_names(plan: PlanRecord) -> list[Any]:
    return _names_of_leaves(plan.traced.call.tree)


def _names_of_leaves(tree: Any) -> list[Any]:
    """Returns, for each leaf of a structure, the names of its dimensions; None for a leaf without
    names."""
    shell = jax.tree.unflatten(tree, range(tree.num_leaves))
    names_of_leaves: list[Any] = [None] * tree.num_leaves
    for node in jax.tree.leaves(shell, is_leaf=_is_box):
        if _is_box(node):
            (position,) = jax.tree.leaves(node)
            names_of_leaves[position] = _names_of(node)
    return names_of_leaves


_OF_VARIABLES = ("sharding_names", "out_sharding", "sharding")
"""The keys under which the metadata of a `flax.nnx` variable may name its dimensions. Flax's
version and the way the variable was made decide which key is used."""


def _names_of(node: Any) -> tuple[Any, ...] | None:
    """Returns the names of the dimensions of a box or variable; None if it has no names."""
    names_of_node = getattr(node, "names", None)
    if names_of_node is None and callable(getattr(node, "get_metadata", None)):
        metadata = node.get_metadata()
        entries = (metadata.get(key) for key in _OF_VARIABLES)
        names_of_node = next(
            (names for names in entries if _are_names(names) and names is not None), None
        )
    return tuple(names_of_node) if isinstance(names_of_node, tuple | list | PartitionSpec) else None


def _is_box(node: Any) -> bool:
    if isinstance(node, tuple | list | dict) or _names_of(node) is None:
        return False
    return [type(leaf) for leaf in jax.tree.leaves(node)] == [int]


def _given_names(plan: PlanRecord, logical_axes: Any) -> list[Any]:
    shell = jax.tree.unflatten(plan.traced.call.tree, range(plan.traced.call.tree.num_leaves))
    full = logical_axes if shell[1] else (logical_axes, {})
    try:
        boxed = jax.tree.map(_Names, full, is_leaf=_are_names)
        spread = jax.tree_util.tree_broadcast(boxed, shell)
    except ValueError as error:
        raise InvalidArgumentError(
            f"logical_axes does not fit the planned arguments: {error}",
            topic=topics.LOGICAL_AXES,
        ) from error
    return [leaf.names for leaf in jax.tree.leaves(spread)]


@dataclass(frozen=True)
class _Names:
    """The names of one argument's dimensions, None for none, as a leaf. The pytree of arguments may
    itself have None where there is no argument."""

    names: Any


def _are_names(node: Any) -> bool:
    """Returns whether a node is a leaf: None, a `PartitionSpec`, or a tuple of names."""
    if node is None or isinstance(node, PartitionSpec):
        return True
    plain: Callable[[Any], bool] = lambda n: n is None or isinstance(n, str)  # noqa: E731
    return type(node) is tuple and bool(node) and all(plain(n) for n in node)
