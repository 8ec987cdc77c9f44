"""Kiwi's own problems: every example on a mesh, and hand-written shardings."""

import dataclasses
import functools
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np

import kiwi
from benchmarks.solver.generated.models import MODELS, Model, use_devices
from benchmarks.solver.layered import layered_problem
from examples import _common
from kiwi.mesh import CATALOGUE, Hardware
from kiwi.mesh.hardware import BackendTraits
from kiwi.planners.registry import planner_named
from kiwi.problem.build import PlanningProblem
from kiwi.solver import Problem
from kiwi.targets.registry import TARGETS

LAYERED = "layered"
"""The name of the generated layers. All other names are examples."""

_AXES = ("x", "y")


class _AsRecorded(Hardware):
    """GPUs with the prices of the time when the instances were recorded."""

    @property
    def traits(self) -> BackendTraits:
        """The backend's traits at that time: gathers of all dimensions cost the same, and each
        collective had a separate latency."""
        return replace(super().traits, gathers_first_dimension=False, combined_bytes={})


def as_recorded(name: str, **given: float | None) -> Hardware:
    """Returns a GPU of the catalogue with the kernel costs of that time. `given` replaces further
    fields."""
    fields = {field: getattr(CATALOGUE[name], field) for field in Hardware.__dataclass_fields__}
    before = {"kernel_launch_seconds": 1e-6, "convolution_efficiency": None}
    return _AsRecorded(**{**fields, **before, **given})


HARDWARE: Mapping[str, Hardware] = {
    "v100-sxm2": as_recorded("v100-sxm2", interference=None, matmul_efficiency=0.85),
    "h100-sxm": as_recorded("h100-sxm", interference=None, matmul_efficiency=0.65),
}
"""The hardware that instances are priced for. Efficiencies are fixed, so that an instance does not
change when the catalogue's efficiencies are fitted anew. Nothing overlaps, as in the contest."""


@dataclass(frozen=True, eq=False)
class Source:
    """A problem without a limit.

    - `starts`: for each hand-written sharding, the option of each node that it fixes.
    """

    problem: Problem
    starts: Mapping[str, Mapping[int, int]]


@functools.lru_cache(maxsize=2)
def source(name: str, layers: int, mesh_shape: tuple[int, ...], profile: str) -> Source:
    """Returns the problem of an example's training step, or of generated layers."""
    if name == LAYERED:
        return Source(layered_problem(layers, seed=sum(mesh_shape)), {})
    use_devices()
    model = with_layers(MODELS[name], layers)
    planned = kiwi.jit(
        model.step(mesh_shape),
        mesh_shape=mesh_shape,
        axis_names=_AXES[: len(mesh_shape)],
        profile=HARDWARE[profile],
        donate_argnums=0,
        verify=None,
    )
    problem = _formulated(planned, model.arguments)
    starts = {}
    for start, specs in _by_hand(model, mesh_shape):
        pinned = planned.with_options(in_shardings=(specs.state, specs.batch))
        given = _traced(pinned).traced(*model.arguments).given_arguments(problem.mesh)
        starts[start] = {
            node: source_node.shardings.index(given[source_node.value])
            for node, source_node in enumerate(problem.sources)
            if given.get(source_node.value) in source_node.shardings
        }
    return Source(replace(problem.problem, limit_bytes=None), starts)


@mock.patch("kiwi.targets.rules.cpu.cpu_copied_operands._is_freed", lambda *_: False)
@mock.patch("kiwi.problem.build.fused_pairs", lambda _: frozenset())
def _formulated(planned: kiwi.PlannedFunction, arguments: tuple[Any, ...]) -> PlanningProblem:
    """Returns the problem with the memory model of the time when the instances were recorded:
    XLA:CPU freed no operand that it had transposed, and a value that was recomputed for an
    elementwise operator was held beside its result."""
    settings = planned.settings
    step = _traced(planned).traced(*arguments)
    kernels = TARGETS["cpu"].kernels(step.units, settings.mesh.hardware)
    budget_bytes = settings.memory_budget_bytes
    return planner_named("joint").formulate(step, budget_bytes, settings, kernels=kernels)


def _traced(planned: kiwi.PlannedFunction) -> kiwi.PlannedFunction:
    """Returns the function as it is traced for XLA:CPU, whose kernels the instances have."""
    hardware = replace(planned.settings.mesh.hardware, backend="cpu")
    return planned.with_options(profile=hardware)


def with_layers(model: Model, layers: int) -> Model:
    """Returns the model with this number of layers, if its configuration counts layers."""
    names = {option.name for option in dataclasses.fields(model.config)}
    if "layers" not in names:
        return model
    return replace(model, config=replace(model.config, layers=layers))


def _by_hand(model: Model, mesh_shape: tuple[int, ...]) -> Iterator[tuple[str, _common.Specs]]:
    """Yields data parallelism, with the state sharded or not, and Megatron's shardings if the
    example has them."""
    state, _ = model.arguments
    module: ModuleType = importlib.import_module(f"examples.{model.module}")
    if not isinstance(state, _common.TrainState) or model.batch_dimension:
        return
    axes = _AXES[: len(mesh_shape)]
    yield "data parallel", _common.data_parallel_specs(state, axes)
    yield "FSDP", _common.fsdp_specs(state, axes, int(np.prod(mesh_shape)))
    if len(mesh_shape) == 2 and hasattr(module, "megatron_specs"):
        megatron = module.megatron_specs(state, *axes)
        yield "Megatron", megatron
        yield "Megatron and FSDP", _common.mixed_specs(state, megatron, axes[0], mesh_shape[0])
