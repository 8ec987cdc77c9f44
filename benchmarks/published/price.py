"""Kiwi's predictions for a published step, as it was run and planned freely."""

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
"""The memory of a host with TPUs. Plans of steps that were run with offloading may use it."""


def priced(step: PublishedStep, effort: str) -> Row:
    """Returns the row of a step. `effort`: the effort of the free plan."""
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
    """Returns the axes of a step. On GPUs of several nodes one mesh axis lies inside of a node."""
    profile = hardware(step.chip)
    devices_per_node = profile.devices_per_node or 1
    if profile.backend == "tpu" or step.devices <= devices_per_node:
        names = tuple(step.axes)
        tensor = tuple(name for name in names if name == "tp")
        return Axes(tuple(step.axes.values()), names, ("fsdp",), tensor)
    names = ("nodes", "gpus")
    fsdp = names if step.axes["fsdp"] == step.devices else names[1:]
    return Axes((step.devices // devices_per_node, devices_per_node), names, fsdp, ())


def _tokens(step: PublishedStep, batch: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((batch, step.sequence), "int32")


def as_run(step: PublishedStep) -> Estimate:
    """Returns the estimate of a step with the shardings and the rematerialisation that it was run
    with.

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
    """Returns the step without shardings and `jax.checkpoint`, and its arguments as shapes."""
    decoder = replace(Decoder.of(step), kept=None)
    return training_step(decoder, None), (abstract_state(decoder), _tokens(step, batch_size))


def host_options(step: PublishedStep) -> dict[str, Any]:
    """Returns the options of a plan that may use host memory, if the published step did."""
    return {"host_memory_budget": HOST_MEMORY} if step.offloaded else {}


def _free(step: PublishedStep, axes: Axes, effort: str) -> dict[str, Any]:
    """Returns the figures of Kiwi's own plan, or the error if there is none."""
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
    """Yields the differences between the rebuilt step and the published one."""
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
