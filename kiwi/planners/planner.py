"""The common interface of planners: an object that plans a step for a budget.

A planner is a frozen dataclass whose fields are its parameters. Its class attributes state its
abilities. `kiwi.planners.registry` finds it by its name.
"""

import logging
import math
import time
from abc import ABC, abstractmethod
from dataclasses import MISSING, dataclass, fields, replace
from typing import ClassVar

from kiwi.campaign.known_peaks import at_most_known, note_peak
from kiwi.campaign.notes import costly_kernels
from kiwi.campaign.tools import CLOCK_ENDED_SEARCH, Tools, check_search
from kiwi.errors import (
    BudgetNotMetError,
    CompileCheckError,
    InfeasibleBudgetError,
    InvalidArgumentError,
    InvalidMeshError,
    LoopNotSupportedError,
    ShardingConflictError,
)
from kiwi.hlo.program import Program
from kiwi.hlo.units import Unit
from kiwi.kernels.facts import TargetFacts
from kiwi.kernels.graph import KernelGraph
from kiwi.memory.residency import Residency
from kiwi.mesh import DeviceMesh, TensorSharding, enumerate_shardings
from kiwi.messages import Note, topics
from kiwi.options import Settings
from kiwi.planners.noticed_deviations import noticed_deviations
from kiwi.planners.whole_regions import naming_whole
from kiwi.plans.cross_check import CrossCheck, cross_checked
from kiwi.plans.estimate import estimate_schedule
from kiwi.plans.of_solution import plan_of_solution
from kiwi.plans.plan import Plan
from kiwi.problem.build import Fixed, PlanningProblem, build_problem
from kiwi.problem.pins import Pins
from kiwi.problem.solved import Solved, Start
from kiwi.problem.step import StepToPlan
from kiwi.problem.user_pins import resolve_pins
from kiwi.solver import SolveResult
from kiwi.solver.schedule import Schedule
from kiwi.targets.registry import is_own_compiler, planned_target
from kiwi.timings import measured
from kiwi.xla.compilers import ATTACHED, COMPILERS, named

_LOG = logging.getLogger(__name__)

UNLIMITED_HOST_BYTES = 2**50
"""The host memory of each device, in bytes, if the user's own policy offloads without a budget."""


@dataclass(frozen=True)
class Planner(ABC):
    """A planner; subclasses implement `plan`.

    - `name`: the name in the registry.
    - `description`: the decisions that the planner makes, on one line.
    - `recomputes`: whether its problem offers recomputation, and whether it heeds hints about it.
    - `heeds_hints`: whether it heeds hints and constraints about shardings.
    - `opens_loops`: whether it plans the bodies of loops and branches (`kiwi.hlo.loops`).
    - `is_sharding`: whether it plans for several devices.
    - `offloads`: whether its problem offers host memory.
    """

    name: str
    description: str

    recomputes: ClassVar[bool] = False
    heeds_hints: ClassVar[bool] = False
    opens_loops: ClassVar[bool] = False
    is_sharding: ClassVar[bool] = True
    offloads: ClassVar[bool] = False

    @property
    def parameters(self) -> dict[str, bool | int | float | str]:
        """The parameters that differ from their defaults, by name, as plan files store them."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in ("name", "description")
            and field.default is not MISSING
            and getattr(self, field.name) != field.default
        }

    @abstractmethod
    def plan(
        self, step: StepToPlan, budget_bytes: int, tools: Tools, start: Start | None = None
    ) -> Plan:
        """Returns the plan of a step for a budget in bytes per device.

        - `tools`: the settings, the compiler and the allowance.
        - `start`: the step's problem, if it is known (`start_for`), and perhaps a solution to begin
          with. Planners of schedules ignore it.

        **Raises:** `InfeasibleBudgetError` or `NoPlanFoundError` if there is no plan;
        `BudgetNotMetError` if none fits as compiled.
        """

    def start_for(self, step: StepToPlan, budget_bytes: int, settings: Settings) -> Start | None:
        """Returns a start for plans for this budget and all larger ones; None if the planner has no
        problem. The problem for the smallest budget has the most copies of operands, and so serves
        all budgets."""
        return Start(self.formulate(step, budget_bytes, settings))

    def settings_for(self, settings: Settings) -> Settings:
        """Returns the settings that the planner plans for, from the user's settings."""
        return settings

    def check(self, mesh: DeviceMesh) -> None:
        """Checks whether the planner can plan for a mesh.

        **Raises:** `InvalidMeshError` if it cannot.
        """
        if not self.is_sharding and mesh.size != 1:
            raise InvalidMeshError(
                f"The planner {self.name!r} plans for one device, the mesh has {mesh.size}.",
                topic=topics.ONE_DEVICE_PLANNER,
            )

    def make(
        self,
        step: StepToPlan,
        settings: Settings,
        start: Start | None = None,
        *,
        is_checked: bool = True,
    ) -> Plan:
        """Checks the request, plans the step for the settings, and measures the time.

        - `start`: as in `plan`.
        - `is_checked`: whether plans are compiled. Otherwise the program of the compiler that
          `settings.verify` names is only predicted.

        **Raises:** the errors of the checks and of `plan`; `LoopNotSupportedError`.
        """
        with measured() as watch:
            plan = self._made(step, settings, start, is_checked=is_checked)
            return replace(plan, timings=watch.timings())

    def _made(
        self, step: StepToPlan, settings: Settings, start: Start | None, *, is_checked: bool
    ) -> Plan:
        """Makes a plan as `make` does, without the timings."""
        started = time.monotonic()
        check_search(settings)
        self.check(settings.mesh)
        self._check_step(step, settings)
        tools = Tools.of(settings, len(step.units.units))
        tools = tools if is_checked else tools.unchecked
        effective_settings = replace(
            settings, planner=self.name, verify=settings.verify if is_checked else None
        )
        try:
            plan = self.plan(step, settings.memory_budget_bytes, tools, start)
        except InfeasibleBudgetError as error:
            if isinstance(error, BudgetNotMetError):
                error.plan = replace(error.plan, history=tools.history.concluded(()))
            explained = at_most_known(error, step, effective_settings)
            explained = naming_whole(
                explained, step.units, settings.mesh, settings.memory_budget_bytes
            )
            if explained is error:
                raise
            raise explained from error
        note_peak(step, effective_settings, plan.peak_bytes)
        seconds = step.seconds + time.monotonic() - started
        if not (plan.solve_result.deterministic or tools.interruption.has_come):
            _LOG.warning(CLOCK_ENDED_SEARCH)
        for note in costly_kernels(plan):
            _LOG.warning(note)
        notes = (*plan.notes, *settings.notes, *self._unused_host_budget(settings))
        checked, uncheckable = self._cross_checked(plan, effective_settings)
        return replace(
            plan,
            cross_check=checked,
            deviations=noticed_deviations(plan),
            planning_seconds=seconds,
            notes=(*notes, *uncheckable),
            planner_parameters=self.parameters,
            history=tools.history.concluded(plan.made_by),
        )

    def _cross_checked(
        self, plan: Plan, settings: Settings
    ) -> tuple[CrossCheck | None, tuple[Note, ...]]:
        """Compiles the plan with the compiler that `verify` names, if it is not the plan's own.

        Returns the comparison with that program, or None and a note if the compiler cannot compile
        or compare it.
        """
        verify = settings.verify
        if verify is None or is_own_compiler(verify, settings.mesh.hardware):
            return None, ()
        has_host_values = plan.estimate.host_peak_bytes or plan.execution.fetched
        if has_host_values and not named(verify).has_host_memory:
            text = f"Not compiled: programs for {verify!r} have no host memory."
            return None, (Note.of(topics.UNCHECKED_HOST, text),)
        step = plan.step_for(named(verify))
        try:
            return cross_checked(plan.execution, step, verify, plan.memory_budget_bytes), ()
        except CompileCheckError as error:
            if error.topic is not topics.NO_EXPECTATION:
                raise
            return None, (Note.of(topics.NOT_COMPARED, f"Not compared: {error.what}"),)

    def may_offload(self, settings: Settings) -> bool:
        """Whether the planner may offload values to host memory: it can, the target can, and there
        is a host budget."""
        target = planned_target(settings.verify, settings.mesh.hardware)
        offloads = target.facts(settings.mesh.hardware).offloads
        return self.offloads and offloads and bool(settings.host_budget_bytes)

    def _host_limit_bytes(
        self, step: StepToPlan, settings: Settings, facts: TargetFacts
    ) -> int | None:
        """Returns the bytes of host memory that one device may use; None if nothing is offloaded.
        Values that the function's own checkpoint policy offloads need no budget."""
        if self.may_offload(settings):
            return settings.host_limit_bytes
        if not (step.program.user_offloads and facts.offloads):
            return None
        return settings.host_limit_bytes or UNLIMITED_HOST_BYTES

    def _unused_host_budget(self, settings: Settings) -> tuple[Note, ...]:
        """Returns a note if there is a host budget that the planner does not use."""
        if not settings.host_budget_bytes or self.may_offload(settings):
            return ()
        if not self.offloads:
            text = f"The planner {self.name!r} offloads nothing to the host's memory."
            return (Note.of(topics.PLANNER_KEEPS_ON_DEVICE, text),)
        target = planned_target(settings.verify, settings.mesh.hardware)
        text = f"Nothing is offloaded to the host's memory in programs for {target.name!r}."
        return (Note.of(topics.NO_HOST_ON_TARGET, text),)

    def _check_step(self, step: StepToPlan, settings: Settings) -> None:
        """Raises `LoopNotSupportedError` or `InvalidArgumentError` if the planner cannot plan the
        step, or the compiler cannot check it."""
        if step.program.loops and not self.opens_loops:
            raise LoopNotSupportedError(
                f"The planner {self.name!r} cannot plan the bodies of scans: the step has "
                f"{len(step.program.loops)}.",
                cause="Its schedules run every operator of a step in one sequence.",
                suggestion="open_loops=False, which plans each loop as one operator, or "
                'planner="joint".',
            )
        verify = settings.verify
        is_own = is_own_compiler(verify, settings.mesh.hardware)
        if step.program.host_values and is_own and not named(str(verify)).has_host_memory:
            able = [f'"{name}"' for name, compiler in COMPILERS.items() if compiler.has_host_memory]
            others = " or ".join((*able, f'"{ATTACHED}"'))
            raise InvalidArgumentError(
                f'verify="{verify}" cannot check a plan with arguments or results in host memory.',
                topic=topics.NO_HOST_MEMORY,
                suggestion=f"verify={others}, or verify=None.",
            )

    def formulate(
        self,
        step: StepToPlan,
        budget_bytes: int,
        settings: Settings,
        *,
        offered: tuple[tuple[Residency, ...], ...] = (),
        kernels: KernelGraph | None = None,
    ) -> PlanningProblem:
        """Returns the problem of a step.

        - `budget_bytes`: the memory limit of one device.
        - `offered`: further residencies of each unit, as in `kiwi.problem.build.Fixed`.
        - `kernels`: the kernels of the step's units. By default they follow from the target's
          rules.
        """
        program, mesh = step.program, settings.mesh
        if kernels is None:
            target = planned_target(settings.verify, mesh.hardware)
            kernels = target.kernels(step.units, mesh.hardware)
        facts = kernels.facts
        arguments = step.given_arguments(mesh)

        def may_offload(unit: Unit) -> float:
            return 0.0 if facts.may_offload(in_scan=unit.loop is not None) else math.inf

        host_limit_bytes = self._host_limit_bytes(step, settings, facts)

        pins = resolve_pins(
            step,
            settings,
            kernels,
            heeds_hints=self.heeds_hints,
            recomputes=self.recomputes,
            offloads=None if host_limit_bytes is None else may_offload,
        )
        arguments |= _pinned_arguments(program, pins, arguments, mesh)
        results = step.given_results(mesh)
        replaced = step.replaced_arguments()
        carried = {
            position: argument for position, argument in replaced.items() if position not in results
        }
        fixed = Fixed(
            arguments,
            results,
            carried,
            self.recomputes,
            offered=offered,
            pins=pins,
            host_limit_bytes=host_limit_bytes,
            offloads_pinned_only=not self.may_offload(settings),
            corrections=settings.corrections,
        )
        fixed = self.fix(fixed, step, budget_bytes, settings)
        return build_problem(kernels, mesh, fixed, budget_bytes)

    def fix(self, fixed: Fixed, step: StepToPlan, budget_bytes: int, settings: Settings) -> Fixed:
        """Returns the caller's restrictions together with the ones that the planner itself adds
        before it searches, by default none."""
        return fixed

    def plan_of(
        self, step: StepToPlan, solved: Solved, result: SolveResult, budget_bytes: int
    ) -> Plan:
        """Returns the plan of a solution, not yet compiled. `result`: the solver's result for the
        solution."""
        return plan_of_solution(self.name, step, solved, result, budget_bytes)


def with_schedule(plan: Plan, solved: Solved, schedule: Schedule, resident_bytes: int = 0) -> Plan:
    """Returns a plan with another schedule, whose memory is estimated in the same way.

    - `solved`: the solution of the plan. `resident_bytes`: as in `estimate_schedule`.
    """
    execution = replace(plan.execution, schedule=schedule)
    decisions = tuple(
        replace(decision, residency="recompute") if unit in execution.recomputed else decision
        for unit, decision in enumerate(plan.decisions)
    )
    estimate = estimate_schedule(solved, schedule, resident_bytes)
    breakdown = replace(plan.breakdown, operators=decisions)
    return replace(plan, execution=execution, estimate=estimate, breakdown=breakdown)


def _pinned_arguments(
    program: Program, pins: Pins, given: dict[int, TensorSharding], mesh: DeviceMesh
) -> dict[int, TensorSharding]:
    """Returns the shardings of arguments for which pins leave only one, by value index.

    - `given`: the shardings by `in_shardings`.

    **Raises:** `ShardingConflictError` if `in_shardings` contradicts a pin.
    """
    shardings = {}
    for value in set(pins.values) & set(program.arguments):
        shape = program.values[value].shape
        options = [given[value]] if value in given else enumerate_shardings(shape, mesh)
        allowed = pins.of_source(value, options)
        if not allowed:
            labels = " and ".join(pin.label for pin in pins.values[value])
            raise ShardingConflictError(
                f"in_shardings gives {mesh.describe(given[value])}, which contradicts {labels}.",
                topic=topics.CONTRADICTION,
            )
        if len(allowed) == 1:
            shardings[value] = allowed[0]
    return shardings
