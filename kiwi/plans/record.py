"""A plan as data: the decisions, their predicted cost, and the compiled program's figures.

Everything that reads a plan (files, reports, explanations) takes a `PlanRecord`.
`kiwi.plans.plan.Plan` adds the methods for users.
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
    """The part of a planner that a plan needs (`kiwi.planners.planner.Planner`)."""

    formulate: Callable[..., PlanningProblem]
    make: Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Origin:
    """The step, the settings and the planner of a plan.

    A `PlanningProblem` is large and quick to make again, so a plan keeps only what it is made from.

    - `offered`: residencies that today's problem may not offer by itself: the plan's own, or those
      of plans that it was made from (`kiwi.planners.joint`).
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
    """One round of the closed loop, see `kiwi.campaign.closed_loop`.

    - `limit_bytes`: the memory limit of the solver.
    - `correction_bytes`: the most that earlier rounds' compiled programs added to the prediction.
    - `predicted_peak_bytes`: the estimate's peak. `compiled_peak_bytes`: None without a check.
    - `solve_seconds`, `compile_seconds`: wall time.
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
        """The compiled peak, or the predicted one without a check."""
        compiled_bytes = self.compiled_peak_bytes
        return self.predicted_peak_bytes if compiled_bytes is None else compiled_bytes


@dataclass(frozen=True, eq=False)
class PlanRecord:
    """How one training step runs on a mesh; see `kiwi.plan`.

    - `mesh`: the device mesh. `profile`: the name of the hardware profile.
    - `planner`: its name. `planner_parameters`: its parameters that are not at their defaults.
    - `memory_budget_bytes`: per device.
    - `estimate`: predicted times and memory.
    - `compiled`: figures of the program compiled for the plan's hardware; None if it was not
      compiled.
    - `solve_result`: status, objective, bound, gap and seconds of the solver, before copies of
      operands are kept (`kiwi.problem.kept_copies`).
    - `execution`: schedule and layouts, from which the program is emitted.
    - `traced`: the traced step.
    - `notes`: notes for the reader, each with a stable code.
    - `planning_seconds`: wall time of planning, compile checks included.
    - `breakdown`: the decisions, and the estimate split by argument and operator.
    - `origin`: what the plan was made from, for explaining and changing it.
    - `progress`: states of the solver, in time.
    - `as_written`: with `planner="xla"`, the estimate of the program that `jax.jit` runs as it is,
      without the order that a plan imposes; otherwise None.
    - `rounds`: the rounds of the closed loop. The last one is this plan, unless it was refused.
      Rounds of searches by other prices (`corrections`) come first.
    - `host_limit_bytes`: the host memory that one device may use; None if nothing is offloaded.
    - `history`: the attempts of the search (`kiwi.campaign.attempts`). `made_by`: the positions in
      it of the two attempts that made the plan's solution and its program.
    - `timings`: where the time of planning went, from tracing on; empty in plans from files.
    - `deviations`: where the compiled program differs from the plan: kernels by their seconds,
      then buffers at another peak than planned, each with the largest difference first.
    - `corrections`: corrected prices: those that the plan was made with, and those that its
      programs taught.
    - `cross_check`: the program of another compiler than the plan's, if one checked it.
    - `cached_on`: the day on which a plan from the cache (`kiwi.plans.plan_cache`) was made; "" for
      a new plan. Its times are those of that day.
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
        """One for each materialised operator, in execution order."""
        return self.breakdown.operators

    @functools.cached_property
    def in_shardings(self) -> Any:
        """A `PartitionSpec` for each argument leaf, as a pair (positional, keyword) of pytrees.

        Without keyword arguments it is the tuple of the positional ones alone, as `jax.jit` takes
        it.
        """
        args, kwargs = jax.tree.unflatten(self.traced.call.tree, self._in_specs)
        return (args, kwargs) if kwargs else args

    @functools.cached_property
    def out_shardings(self) -> Any:
        """A `PartitionSpec` for each result leaf, in the result's pytree."""
        return jax.tree.unflatten(self.traced.out_tree, self._out_specs)

    @property
    def fits(self) -> bool:
        """Whether the plan is within the budget of the device and of the host: as compiled, or as
        estimated without a check."""
        is_within = self.host_limit_bytes is None or self.host_peak_bytes <= self.host_limit_bytes
        return self.peak_bytes <= self.memory_budget_bytes and is_within

    @property
    def peak_bytes(self) -> int:
        """The compiled peak, or the estimated one without a check."""
        return (self.compiled or self.estimate).peak_bytes

    @property
    def step_seconds(self) -> float:
        """The step time of the compiled schedule, or the estimated one where that is unknown."""
        seconds = None if self.compiled is None else self.compiled.step_seconds
        return self.estimate.step_seconds if seconds is None else seconds

    @property
    def time_ratio(self) -> float | None:
        """The step time of the compiled schedule over the estimated one; None without a check."""
        seconds = None if self.compiled is None else self.compiled.step_seconds
        return None if seconds is None else seconds / self.estimate.step_seconds

    @property
    def host_peak_bytes(self) -> int:
        """The host memory that one device uses, as compiled or else as estimated. The compiled
        figure includes arguments and results that the caller keeps there."""
        return (self.compiled or self.estimate).host_peak_bytes

    @property
    def time_shares(self) -> Mapping[str, float]:
        """The shares of the predicted time that are "measured", "interpolated", "extrapolated" from
        measurements, or "analytic". They add up to 1."""
        return self.estimate.time_shares

    @property
    def unforeseen_collectives(self) -> tuple[AxisUse, ...]:
        """Collectives of the compiled program beyond the plan's, by kind and mesh axes.

        Empty without a check.
        """
        if self.compiled is None:
            return () if self.cross_check is None else self.cross_check.unforeseen_collectives
        return unforeseen(self.estimate.collective_uses, self.compiled.collective_uses)

    @functools.cached_property
    def _in_specs(self) -> list[Any]:
        return [self.mesh.partition_spec(s) for s in self.execution.argument_shardings]

    @functools.cached_property
    def _out_specs(self) -> list[Any]:
        whole = jax.sharding.PartitionSpec()
        return [
            whole if s is None else self.mesh.partition_spec(s)
            for s in self.execution.result_shardings
        ]

    @functools.cached_property
    def function(self) -> Callable[..., list[Any]]:
        """The planned step over flat argument leaves, to be traced by `jax.jit`."""
        return emit(self.execution)

    @functools.cached_property
    def step(self) -> Step:
        """The planned step with everything that compiling it needs."""
        program, specs = self.execution.units.graph.program, (self._in_specs, self._out_specs)
        on_host = (
            frozenset(k for k, value in enumerate(values) if program.is_on_host(value))
            for values in (program.arguments, program.results)
        )
        call = self.traced.call
        given = self.function, call.shapes, self.mesh
        return Step(
            *given,
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
        """The price of one run of each library kernel, by unit."""
        kernels, graph = self.execution.kernels, self.execution.units.graph
        kinds = kernel_kinds(kernels, self.mesh)
        by_unit: dict[int, float] = {}
        for unit, decision in zip(self.execution.units.units, self.decisions, strict=True):
            calls = sum(graph.program.equations[e].kernel_calls for e in unit.equations)
            if calls:
                work = kinds.of(unit).work
                result_bytes = sum(graph.program.values[v].size_bytes for v in unit.outputs)
                seconds = work.share_without_beside(result_bytes) * decision.seconds
                by_unit[unit.index] = seconds / decision.trips / calls
            elif graph.equations[unit.root].is_region:
                price = region_price(kernels, graph.program.equations[unit.root], self.mesh)
                if price.kernel_runs:
                    by_unit[unit.index] = price.kernel_seconds / price.kernel_runs
        return by_unit

    def place(self, *args: Any, mesh: jax.sharding.Mesh | None = None, **kwargs: Any) -> Any:
        """Moves arguments to where the plan wants them. Returns them in the form given (a tuple if
        several).

        - `mesh`: the devices to use, by default the first `plan.mesh.size` attached ones.

        **Raises:** `NotEnoughDevicesError`; `InvalidArgumentError` if the arguments are not those
        planned for.
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

        For a compiler that the plan was not made for, it gets the barriers that every plan needs.
        If that compiler does not order steps by memory, it gets a barrier at every step.
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
        """The planned step over flat leaves, jitted for concrete devices; raises
        `CompilerUnavailableError` if Kiwi does not know their compiler."""
        compiler = of_devices(mesh)
        return self.step_for(compiler).jit(mesh, self.run_options(compiler))

    def run_options(self, compiler: Compiler, *, waits: bool = False) -> Mapping[str, Any]:
        """The compiler options that the plan runs with. Collectives overlap with computation,
        unless a check found no room for that or the step `waits` for them."""
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

        - `devices`: devices of jax, by default the attached ones. Described devices
          (`jax.experimental.topologies`) are enough, so nothing needs to be attached.

        **Raises:** `NotEnoughDevicesError`; `CompilerUnavailableError` as `jit`.
        """
        jitted: Any = self.jit(self.mesh.jax_mesh(devices))
        return jitted.lower(*self.step.arguments)

    def residency_counts(self) -> Mapping[str, int]:
        """How many operators are kept, recomputed and, if there are any, offloaded."""
        residencies = [decision.residency for decision in self.decisions]
        names = dict.fromkeys(("keep", "recompute", *sorted(residencies)))
        return {residency: residencies.count(residency) for residency in names}


def place_leaves(
    leaves: Sequence[Any], shardings: Sequence[jax.sharding.NamedSharding]
) -> list[Any]:
    """Moves leaves to their shardings. A leaf that is already in place is returned unchanged.

    `jax.device_put` may take over the buffer of an array, and cannot take it twice. So an array
    that stands for several leaves is copied.
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

    return [placed(leaf, s) for leaf, s in zip(leaves, shardings, strict=True)]
