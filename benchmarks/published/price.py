"""What Kiwi predicts of a published step, as it was run and planned freely."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import jax
from jax.sharding import PartitionSpec

import kiwi
from benchmarks.published.models import (
    Axes,
    Decoder,
    abstract_state,
    parameter_count,
    state_specs,
    training_step,
)
from benchmarks.published.rows import PublishedStep
from benchmarks.tpu.book import Row
from examples._common import Specs
from examples.baselines import Baseline, estimate_baseline
from kiwi.errors import KiwiError
from kiwi.mesh import hardware
from kiwi.plans.estimate import Estimate
from kiwi.targets.rules.tpu import tpu_scattered_sums

HOST_MEMORY = "1TiB"
"""Of a host with TPUs, which plans of steps that were run with offloading may use as well."""


def priced(step: PublishedStep, effort: str) -> Row:
    """The row of a step; `effort` of planning it freely."""
    decoder, axes = Decoder.of(step), _axes(step)
    run = as_run(step)
    return {
        "published_seconds": step.seconds,
        "predicted_seconds": run.step_seconds,
        "compute_seconds": run.compute_seconds,
        "communication_seconds": run.communication_seconds + run.resharding_seconds,
        "exposed_seconds": run.exposed_seconds,
        "peak_bytes": run.peak_bytes,
        "memory_bytes": hardware(step.chip).memory_bytes,
        "parameters": parameter_count(decoder),
        **_free(step, axes, effort),
        "simplified": [*_simplified(step)],
    }


def _axes(step: PublishedStep) -> Axes:
    """A mesh on which the axes that were given are; of GPUs with one axis inside of a node."""
    profile = hardware(step.chip)
    within = profile.devices_per_node or 1
    if profile.backend == "tpu" or step.devices <= within:
        names = tuple(step.axes)
        tensor = tuple(name for name in names if name == "tp")
        return Axes(tuple(step.axes.values()), names, ("fsdp",), tensor)
    names = ("nodes", "gpus")
    fsdp = names if step.axes["fsdp"] == step.devices else names[1:]
    return Axes((step.devices // within, within), names, fsdp, ())


def _tokens(step: PublishedStep, batch: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((batch, step.sequence), "int32")


def as_run(step: PublishedStep) -> Estimate:
    """The estimate of a step with the shardings and the rematerialisation that it was run with.

    By default XLA:TPU scatters a matmul's sums piece by piece, in pieces of any size.
    """
    decoder, axes = Decoder.of(step), _axes(step)
    specs = Specs(state_specs(decoder, axes), PartitionSpec(axes.batch))
    with mock.patch.object(tpu_scattered_sums, "cuts_tiles", return_value=True):
        return estimate_baseline(
            Baseline(step.key, training_step(decoder, axes), specs),
            abstract_state(decoder),
            _tokens(step, step.batch),
            mesh_shape=axes.shape,
            axis_names=axes.names,
            profile=step.chip,
        )


def unsharded(step: PublishedStep, batch_size: int) -> tuple[Any, tuple[Any, ...]]:
    """The step without shardings and `jax.checkpoint`, and its arguments as shapes."""
    decoder = replace(Decoder.of(step), kept=None)
    return training_step(decoder, None), (abstract_state(decoder), _tokens(step, batch_size))


def host_options(step: PublishedStep) -> dict[str, Any]:
    """Those of plans that may use the host's memory as the step did."""
    return {"host_memory_budget": HOST_MEMORY} if step.offloaded else {}


def _free(step: PublishedStep, axes: Axes, effort: str) -> dict[str, Any]:
    """Kiwi's own plan; what it says where there is none."""
    function, args = unsharded(step, step.batch)
    try:
        plan = kiwi.plan(
            function,
            *args,
            donate_argnums=0,
            mesh_shape=axes.shape,
            axis_names=axes.names,
            profile=step.chip,
            verify=None,
            effort=effort,
            **host_options(step),
        )
    except KiwiError as error:
        return {"free_seconds": None, "free_error": str(error).splitlines()[0]}
    return {
        "free_seconds": plan.estimate.step_seconds,
        "free_gap": plan.solve_result.gap,
        "free_peak_bytes": plan.estimate.peak_bytes,
        "free_host_peak_bytes": plan.estimate.host_peak_bytes,
        "planning_seconds": round(plan.planning_seconds, 1),
    }


def _simplified(step: PublishedStep) -> Iterator[str]:
    """In what the rebuilt step differs from the one that was run."""
    if step.offloaded:
        yield "what is offloaded stays on the device, and costs nothing"
    if "host" in step.other:
        yield "the optimizer's state is on the device"
    if "no scan" in step.other:
        yield "layers are scanned"
    if "SFT" in step.other:
        yield "every token counts in the loss"
    if "experts" in step.mlp:
        yield "experts are chosen by a softmax, without a loss of their own"
