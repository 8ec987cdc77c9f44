"""Hand-written steps: argument shardings, and one `jax.checkpoint` policy for all layers.

"data" replicates the state. "fsdp" shards each array of the state over all devices. "tensor" shards
hidden features along the last mesh axis. "both" also shards the rest of the state along the other
axes.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from benchmarks.sampled.layers import CHECKPOINTS
from benchmarks.sampled.models import DrawnModel
from examples._common import Specs
from examples.baselines import Baseline

SHARDINGS = ("data", "fsdp", "tensor", "both")
VARIANTS = tuple(f"{sharding}/{policy}" for sharding in SHARDINGS for policy in CHECKPOINTS)
"""The names of all variants: the sharding, then the policy."""

_HIDDEN_FIRST = ("out", "down")
"""The names of kernels whose first dimension holds hidden features."""


def baseline(model: DrawnModel, mesh_shape: Sequence[int], variant: str) -> Baseline:
    """Returns one of `VARIANTS` for a mesh with the axes "x", "y" and so on."""
    sharding, policy = variant.split("/")
    names = ("x", "y", "z")[: len(mesh_shape)]
    sizes = dict(zip(names, mesh_shape, strict=True))
    state = jax.tree_util.tree_map_with_path(
        lambda path, leaf: _spec(sharding, sizes, _name(path), leaf.shape), model.state
    )
    batch_axes = names[:-1] if sharding in ("tensor", "both") else names
    examples = jax.tree.leaves(model.batch)[0].shape[0]
    divided = _size(sizes, batch_axes)
    is_divided = bool(batch_axes) and examples % divided == 0
    batch = PartitionSpec(batch_axes) if is_divided else PartitionSpec()
    return Baseline(variant, model.make_step(policy), Specs(state, batch))


def _spec(sharding: str, sizes: dict[str, int], name: str, shape: tuple[int, ...]) -> PartitionSpec:
    names = tuple(sizes)
    if sharding == "data" or len(shape) < 1:
        return PartitionSpec()
    entries: list[Any] = [None] * len(shape)
    if sharding == "fsdp":
        _place(entries, shape, names, _size(sizes, names))
    else:
        last = names[-1:]
        hidden = _hidden_dimension(name, shape)
        if hidden is not None and shape[hidden] % sizes[last[0]] == 0:
            entries[hidden] = last
        if sharding == "both" and names[:-1]:
            _place(entries, shape, names[:-1], _size(sizes, names[:-1]))
    return PartitionSpec(*entries)


def _place(found: list[Any], shape: tuple[int, ...], axes: tuple[str, ...], size: int) -> None:
    """Shards the largest free dimension that the axes divide, if there is one."""
    free = [
        length if found[k] is None and length % size == 0 else 0 for k, length in enumerate(shape)
    ]
    if any(free):
        found[free.index(max(free))] = axes


def _hidden_dimension(name: str, shape: tuple[int, ...]) -> int | None:
    """Returns the dimension of a kernel's hidden features; None if the array is no kernel."""
    if len(shape) < 2:
        return None
    return 0 if name in _HIDDEN_FIRST else len(shape) - 1


def _name(path: tuple[Any, ...]) -> str:
    """Returns the last name of a path."""
    names = [str(getattr(p, "key", getattr(p, "name", ""))) for p in path]
    return names[-1] if names else ""


def _size(sizes: dict[str, int], axes: Sequence[str]) -> int:
    size = 1
    for axis in axes:
        size *= sizes[axis]
    return size
