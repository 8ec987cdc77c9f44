"""The variants of one model on one mesh: plans, and steps sharded by hand."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.fidelity.models import Model
from examples._common import Remat, Specs
from examples.baselines import Baseline

REMATS: tuple[Remat, ...] = (None, "full", "dots", "dots_no_batch")
AXES = ("x", "y")


@dataclass(frozen=True)
class PlannedVariant:
    """A plan by Kiwi.

    `share` is its budget, as a part of the compiled peak of the plan without a budget. None is the
    plan without a budget.
    """

    share: float | None

    @property
    def name(self) -> str:
        """ "free", or "budget-60" for 60 %."""
        return "free" if self.share is None else f"budget-{100 * self.share:g}"


@dataclass(frozen=True)
class HandVariant:
    """Argument shardings, and the policy of `jax.checkpoint`."""

    sharding: str
    remat: Remat

    @property
    def name(self) -> str:
        """The name of the variant, for example "fsdp/full"."""
        return f"{self.sharding}/{self.remat or 'none'}"


def planned_variants(shares: Sequence[float]) -> list[PlannedVariant]:
    """Returns the plan without a budget, then the plans with each budget."""
    return [PlannedVariant(None), *(PlannedVariant(share) for share in shares)]


def hand_variants(
    mesh_shape: tuple[int, ...], remats: Sequence[Remat] = REMATS
) -> Iterator[HandVariant]:
    """Yields all variants that differ on a mesh. One device has no shardings, and "mixed" needs two
    axes. No variants are written for more than two axes."""
    axes = sum(size > 1 for size in mesh_shape)
    shardings = (
        ("single",),
        ("data", "fsdp", "megatron"),
        ("data", "fsdp", "megatron", "mixed"),
        (),
    )
    for sharding in shardings[axes]:
        for remat in remats:
            yield HandVariant(sharding, remat)


def baseline(model: Model, mesh_shape: tuple[int, ...], variant: HandVariant) -> Baseline:
    """Returns the training step of a variant, with the shardings of its arguments.

    On a mesh of two axes longer than 1, "megatron" is tensor parallel along the last axis and data
    parallel along the first. "mixed" also shards the rest of the state along the first axis. On a
    mesh with one such axis, "megatron" is tensor parallel alone.
    """
    module, config = model.module, model.config
    step = module.make_train_step(config, remat=variant.remat)
    specs = _specs(module, module.abstract_state(config), mesh_shape, variant.sharding)
    return Baseline(variant.name, step, specs)


def _specs(module: Any, state: Any, mesh_shape: tuple[int, ...], sharding: str) -> Specs:
    real: tuple[str, ...] = tuple(
        name for name, size in zip(AXES, mesh_shape, strict=True) if size > 1
    )
    if sharding in ("single", "data"):
        return module.data_parallel_specs(state, real)
    if sharding == "fsdp":
        return module.fsdp_specs(state, real, math.prod(mesh_shape))
    data_axis = real[0] if len(real) > 1 else None
    megatron = module.megatron_specs(state, data_axis, real[-1])
    if sharding == "megatron" or data_axis is None:
        return megatron
    return module.mixed_specs(state, megatron, data_axis, mesh_shape[0])
