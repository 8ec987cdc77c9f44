"""A plan as data: the decisions, their predicted cost, and the compiled program's figures.

All code that reads a plan (files, reports, explanations) takes a `PlanRecord`. Every such record is
a `kiwi.plans.plan.Plan`, which has this code as methods for users. The two are apart only because a
class cannot be imported by the modules that it imports.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import jax

from kiwi.corrections import NO_CORRECTIONS, Corrections
from kiwi.emit.execution import Execution
from kiwi.emit.interpreter import emit
from kiwi.errors import InvalidArgumentError
from kiwi.memory.residency import Residency
from kiwi.mesh import DeviceMesh
from kiwi.messages import Note, topics
from kiwi.options import Settings
from kiwi.plans.breakdown import CostBreakdown, Decision
from kiwi.plans.cross_check import CrossCheck
from kiwi.plans.deviations import KernelDeviation
from kiwi.plans.estimate import Estimate
from kiwi.plans.history import Trial
from kiwi.problem.build import PlanningProblem
from kiwi.problem.costs import region_price
from kiwi.problem.kernel_kind import kernel_kinds
from kiwi.problem.predicted_collectives import unforeseen
from kiwi.problem.step import StepToPlan
from kiwi.solver import Progress, SolveResult
from kiwi.targets.registry import target_named
from kiwi.timings import StageTime
from kiwi.xla.compiler import Compiler
from kiwi.xla.compilers import of_devices
from kiwi.xla.read.collectives import AxisUse
from kiwi.xla.read.compiled_program import CompiledProgram
from kiwi.xla.step import XLAS_OWN, Step


class MadeBy(Protocol):
    """The methods of a planner that a plan needs (`kiwi.planners.planner.Planner`)."""

    formulate: Callable[..., PlanningProblem]
    make: Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Origin:
    """The step, the settings and the planner of a plan.

    A `PlanningProblem` is large and quick to make again. So a plan keeps only the data from which
    the problem is formulated.

    - `offered`: for each unit, residencies that the problem has to offer in addition. They come
      from the plan itself, or from plans that it was made from (`kiwi.planners.joint`).
    """

    step: StepToPlan
    settings: Settings
    planner: MadeBy
    offered: tuple[tuple[Residency, ...], ...] = ()

    @functools.cached_property
    def planning(self) -> PlanningProblem:
        """The problem that the plan solves; formulated on first use."""
        budget_bytes = self.settings.memory_budget_bytes
        return self.planner.formulate(self.step, budget_bytes, self.settings, offered=self.offered)


@dataclass(frozen=True)
class Round:
    """One round of the closed loop (`kiwi.campaign.closed_loop`).

    - `limit_bytes`: the memory limit of the solver.
    - `correction_bytes`: the most bytes by which compiled programs of earlier rounds exceeded their
      prediction.
    - `predicted_peak_bytes`: the estimate's peak.
    - `compiled_peak_bytes`: the compiled program's peak; None without a check.
    - `solve_seconds`, `compile_seconds`: wall times.
    - `is_tied`: whether barriers kept every step in the plan's order.
    """

    limit_bytes: int
    correction_bytes: int
    predicted_peak_bytes: int
    compiled_peak_bytes: int | None
    solve_seconds: float
    compile_seconds: float
    is_tied: bool = True

    @property
    def peak_bytes(self) -> int:
        """The compiled peak; without a check, the predicted peak."""
        compiled_bytes = self.compiled_peak_bytes
        return self.predicted_peak_bytes if compiled_bytes is None else compiled_bytes


class KnownFigures:
    """The figures of a plan as the compiler states them, or else as estimated.

    - `estimate`, `compiled`: as in `PlanRecord`.
    """

    estimate: Estimate
    compiled: CompiledProgram | None

    @property
    def peak_bytes(self) -> int:
        """The compiled peak of device memory; without a check, the estimated peak."""
        return (self.compiled or self.estimate).peak_bytes

    @property
    def step_seconds(self) -> float:
        """The step time of the compiled schedule; if it is unknown, the estimated step time."""
        seconds = None if self.compiled is None else self.compiled.step_seconds
        return self.estimate.step_seconds if seconds is None else seconds


@dataclass(frozen=True, eq=False)
class PlanRecord(KnownFigures):
    """How one training step runs on a mesh; see `kiwi.plan`.

    - `mesh`: the device mesh.
    - `profile`: the name of the hardware profile.
    - `planner`: the name of the planner.
    - `memory_budget_bytes`: the memory budget of each device.
    - `estimate`: the predicted times and memory.
    - `compiled`: the figures of the program compiled for the plan's hardware; None if it was not
      compiled.
    - `solve_result`: the status, objective, bound, gap and seconds of the solver, before copies of
      operands are kept (`kiwi.problem.kept_copies`).
    - `execution`: the schedule and the layouts from which the program is emitted.
    - `traced`: the traced step.
    - `notes`: notes for the reader, each with a stable code.
    - `planning_seconds`: the wall time of planning, compile checks included.
    - `breakdown`: the decisions, and the estimate split by argument and operator.
    - `origin`: the step, settings and planner that the plan was made from, with which the plan is
      explained and changed; None if they are not known.
    - `progress`: the states of the solver over time.
    - `rounds`: the rounds of the closed loop. The last round made this plan, unless it was refused.
      Rounds of searches with other prices (`corrections`) come first.
    - `as_written`: with `planner="xla"`, the estimate of the program that `jax.jit` runs as it is,
      without the order that a plan imposes; otherwise None.
    - `host_limit_bytes`: the host memory that one device may use; None if nothing is offloaded.
    - `cached_on`: the day on which a plan from the cache (`kiwi.plans.plan_cache`) was made; "" for
      a new plan. Its wall times were measured on that day.
    - `planner_parameters`: the planner's parameters that are not at their defaults.
    - `history`: the attempts of the search (`kiwi.campaign.attempts`).
    - `made_by`: the positions in `history` of the attempts that made the plan's solution and its
      program.
    - `timings`: the time of each stage of planning, from tracing on; empty in plans from files.
    - `cross_check`: the program of another compiler than the plan's, if one checked the plan.
    - `corrections`: the corrected prices that the plan was made with, and the prices that its
      compiled programs corrected.
    - `deviations`: the differences between the compiled program and the plan: first kernels by
      their seconds, then buffers if the peaks differ. The largest differences come first.
    """

    mesh: DeviceMesh
    profile: str
    planner: str
    memory_budget_bytes: int
    estimate: Estimate
    compiled: CompiledProgram | None
    solve_result: SolveResult
    execution: Execution
    traced: StepToPlan
    notes: tuple[Note, ...]
    planning_seconds: float
    breakdown: CostBreakdown
    origin: Origin | None = None
    progress: tuple[Progress, ...] = ()
    rounds: tuple[Round, ...] = ()
    as_written: Estimate | None = None
    host_limit_bytes: int | None = None
    cached_on: str = ""
    planner_parameters: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    history: tuple[Trial, ...] = ()
    made_by: tuple[int, ...] = ()
    timings: tuple[StageTime, ...] = ()
    cross_check: CrossCheck | None = None
    corrections: Corrections = NO_CORRECTIONS
    deviations: tuple[KernelDeviation, ...] = ()

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The decision for each materialised operator, in execution order."""
        return self.breakdown.operators

    @functools.cached_property
    def in_shardings(self) -> Any:
        """A `PartitionSpec` for each argument leaf, as a pair (positional, keyword) of pytrees.

        Without keyword arguments it is the tuple of the positional arguments only, as `jax.jit`
        takes it.
        """
        args, kwargs = jax.tree.unflatten(self.traced.call.tree, self._in_specs)
        return (args, kwargs) if kwargs else args

    @functools.cached_property
    def out_shardings(self) -> Any:
        """A `PartitionSpec` for each result leaf, in the result's pytree."""
        return jax.tree.unflatten(self.traced.out_tree, self._out_specs)

    @property
    def fits(self) -> bool:
        """Whether the plan is within the budgets of device and host memory. The compiled peaks
        count; without a check, the estimated peaks."""
        is_within = self.host_limit_bytes is None or self.host_peak_bytes <= self.host_limit_bytes
        return self.peak_bytes <= self.memory_budget_bytes and is_within

    @property
    def time_ratio(self) -> float | None:
        """The step time of the compiled schedule divided by the estimated step time; None if the
        former is unknown."""
        seconds = None if self.compiled is None else self.compiled.step_seconds
        return None if seconds is None else seconds / self.estimate.step_seconds

    @property
    def host_peak_bytes(self) -> int:
        """The compiled peak of the host memory of one device; without a check, the estimated peak.
        The compiled peak includes arguments and results that the caller keeps on the host."""
        return (self.compiled or self.estimate).host_peak_bytes

    @property
    def time_shares(self) -> Mapping[str, float]:
        """The fractions of the predicted time that are "measured", "interpolated", "extrapolated"
        from measurements, or "analytic". They add up to 1."""
        return self.estimate.time_shares

    @property
    def unforeseen_collectives(self) -> tuple[AxisUse, ...]:
        """The collectives of the compiled program beyond the plan's, by kind and mesh axes. Without
        a compiled program, the cross check supplies them; without any check, there are none."""
        if self.compiled is None:
            return () if self.cross_check is None else self.cross_check.unforeseen_collectives
        return unforeseen(self.estimate.collective_uses, self.compiled.collective_uses)

    @functools.cached_property
    def _in_specs(self) -> list[Any]:
        return [
            self.mesh.partition_spec(sharding) for sharding in self.execution.argument_shardings
        ]

    @functools.cached_property
    def _out_specs(self) -> list[Any]:
        replicated = jax.sharding.PartitionSpec()
        return [
            replicated if sharding is None else self.mesh.partition_spec(sharding)
            for sharding in self.execution.result_shardings
        ]

    @functools.cached_property
    def function(self) -> Callable[..., list[Any]]:
        """The planned step as a function of flat argument leaves, to be traced by `jax.jit`."""
        return emit(self.execution)

    @functools.cached_property
    def step(self) -> Step:
        """The planned step with all data that its compilation needs."""
        program, specs = self.execution.units.graph.program, (self._in_specs, self._out_specs)
        on_host = (
            frozenset(k for k, value in enumerate(values) if program.is_on_host(value))
            for values in (program.arguments, program.results)
        )
        call = self.traced.call
        inputs = self.function, call.shapes, self.mesh
        return Step(
            *inputs,
            *specs,
            call.donated,
            *on_host,
            kernel_seconds=self._kernel_seconds,
            unit_runs=self._unit_runs,
            arrangement=self.execution.arrangement,
        )

    @property
    def _unit_runs(self) -> Mapping[int, float]:
        units = self.execution.units
        return {unit.index: units.trips(unit) for unit in units.units}

    @property
    def _kernel_seconds(self) -> Mapping[int, float]:
        """The seconds of one run of a library kernel, by unit."""
        kernels, graph = self.execution.kernels, self.execution.units.graph
        kinds = kernel_kinds(kernels, self.mesh)
        by_unit: dict[int, float] = {}
        for unit, decision in zip(self.execution.units.units, self.decisions, strict=True):
            calls = sum(
                graph.program.equations[equation].kernel_calls for equation in unit.equations
            )
            if calls:
                work = kinds.of(unit).work
                result_bytes = sum(
                    graph.program.values[output].size_bytes for output in unit.outputs
                )
                seconds = work.share_without_beside(result_bytes) * decision.seconds
                by_unit[unit.index] = seconds / decision.trips / calls
            elif graph.equations[unit.root].is_region:
                price = region_price(kernels, graph.program.equations[unit.root], self.mesh)
                if price.kernel_runs:
                    by_unit[unit.index] = price.kernel_seconds / price.kernel_runs
        return by_unit

    def place(self, *args: Any, mesh: jax.sharding.Mesh | None = None, **kwargs: Any) -> Any:
        """Moves arguments to the plan's shardings. Returns the moved arguments: one argument as it
        is, several as a tuple, and a pair (positional, keyword) if there are keyword arguments.

        - `mesh`: the devices to use, by default the first `plan.mesh.size` attached devices.

        **Raises:** `NotEnoughDevicesError`; `InvalidArgumentError` if the arguments have another
        structure than the planned one.
        """
        leaves, tree = jax.tree.flatten((args, kwargs))
        if tree != self.traced.call.tree:
            raise InvalidArgumentError(
                f"The arguments have the structure {tree}, the plan was made for "
                f"{self.traced.call.tree}.",
                topic=topics.OTHER_STRUCTURE,
            )
        placed = place_leaves(leaves, self.leaf_shardings(mesh or self.mesh.jax_mesh()))
        placed_args, placed_kwargs = jax.tree.unflatten(tree, placed)
        if placed_kwargs:
            return placed_args, placed_kwargs
        return placed_args[0] if len(placed_args) == 1 else placed_args

    def leaf_shardings(self, mesh: jax.sharding.Mesh) -> list[jax.sharding.NamedSharding]:
        """The sharding of each flat argument leaf on concrete devices."""
        return self.step.argument_shardings(mesh)

    def step_for(self, compiler: Compiler) -> Step:
        """The planned step for a compiler.

        For a compiler that the plan was not made for, the step gets the barriers that every plan
        needs. If that compiler does not order steps by memory, the step gets a barrier at every
        step of the schedule.
        """
        if compiler.name == self.execution.compiler.name:
            return self.step
        facts = target_named(compiler.name).facts(self.mesh.hardware)
        tied_steps = frozenset[int]() if facts.schedules_for_memory else None
        execution = replace(
            self.execution,
            tied_steps=tied_steps,
            is_for_another_compiler=True,
            copies_ahead=False,
            gradients_in_time=False,
            metrics_in_time=False,
        )
        return replace(self.step, function=emit(execution), arrangement=XLAS_OWN)

    def jit(self, mesh: jax.sharding.Mesh) -> Callable[..., list[Any]]:
        """The planned step over flat argument leaves, jitted for concrete devices.

        **Raises:** `CompilerUnavailableError` if Kiwi does not know the devices' compiler.
        """
        compiler = of_devices(mesh)
        return self.step_for(compiler).jit(mesh, self.run_options(compiler))

    def run_options(self, compiler: Compiler, *, waits: bool = False) -> Mapping[str, Any]:
        """The compiler options that the plan runs with. Collectives overlap with computation,
        unless a check found that the overlapping program does not fit, or `waits` is set."""
        if compiler.name == self.execution.compiler.name:
            compiler = compiler.arranged(self.execution.arrangement)
        checked, ways = self.compiled, compiler.overlapping_options
        if waits or not ways or not (checked is None or checked.is_overlapping):
            return compiler.run_options
        if checked is None or checked.target != compiler.name:
            return ways[0]
        return ways[checked.overlap]

    def lower(self, devices: Sequence[Any] | None = None) -> jax.stages.Lowered:
        """The planned step lowered for devices, to be compiled, read or compared.

        - `devices`: JAX devices, by default the attached devices. Described devices
          (`jax.experimental.topologies`) are enough, so no device needs to be attached.

        **Raises:** `NotEnoughDevicesError`; `CompilerUnavailableError` as `jit` does.
        """
        jitted: Any = self.jit(self.mesh.jax_mesh(devices))
        return jitted.lower(*self.step.arguments)

    def residency_counts(self) -> Mapping[str, int]:
        """The number of operators that are kept and recomputed, and, if there are any, that are
        offloaded."""
        residencies = [decision.residency for decision in self.decisions]
        names = dict.fromkeys(("keep", "recompute", *sorted(residencies)))
        return {residency: residencies.count(residency) for residency in names}


def place_leaves(
    leaves: Sequence[Any], shardings: Sequence[jax.sharding.NamedSharding]
) -> list[Any]:
    """Moves leaves to their shardings and returns them. A leaf that is already in place is returned
    unchanged.

    `jax.device_put` may take over the buffer of an array, and cannot take it over twice. So an
    array that stands for several leaves is copied.
    """
    moved = set[int]()

    def placed(leaf: Any, sharding: jax.sharding.NamedSharding) -> Any:
        if isinstance(leaf, jax.Array):
            if leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
                return leaf
            if id(leaf) in moved:
                leaf = leaf.copy()
            moved.add(id(leaf))
        return jax.device_put(leaf, sharding)

    return [
        placed(leaf, leaf_sharding) for leaf, leaf_sharding in zip(leaves, shardings, strict=True)
    ]
