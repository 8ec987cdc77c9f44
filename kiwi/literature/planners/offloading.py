"""The planners of papers that copy values to the host, on a step of one device.

1. The step is planned without a limit, with everything kept (`OneDevice`). A value may be copied to
   the host if the problem of the step offers this, as it does to "joint": an array of the forward
   pass that is read behind it (`kiwi.memory.residency`). All other values stay on the device
   (`Host.stays`), arguments included.
2. The paper's planner finds an `OffloadSchedule` within the budget.
   `kiwi.literature.remat.offload.simulate` simulates the schedule.
3. The schedule is emitted as a schedule of units in which some steps are fetches (`as_emitted`). It
   is estimated by the account of all plans, and compiled. While the compiled program is over the
   budget, the limit is lowered by the excess and the planner runs again
   (`kiwi.campaign.limit_search`).

**What is emitted** of an `OffloadSchedule`. A value is copied out once, behind its first
computation, and XLA paces that copy (docs/how_it_works/memory.md). A fetch stands where its
transfer begins. A value that is fetched once is fetched wherever the schedule computes it again,
because its copy is on the host by then.

**Compilers** without host memory (XLA:CPU) cannot check such a plan, because their programs hold
the values that were to be on the host. The plan is then made for the compiler of its hardware and
not compiled.
"""

import functools
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from kiwi.campaign import shares
from kiwi.campaign.closed_loop import ClosedLoop
from kiwi.campaign.limit_search import LimitSearch
from kiwi.campaign.tools import Tools
from kiwi.kernels.graph import KernelGraph
from kiwi.literature.planners.one_device import OneDevice, OneDevicePlanner, pointer_bytes
from kiwi.literature.remat.fastsa import FIRST_STAGE, SECOND_STAGE, fastsa
from kiwi.literature.remat.graph import RematGraph
from kiwi.literature.remat.offload.fastsa import fastsa_offload
from kiwi.literature.remat.offload.host import IDLE, Host, OffloadSchedule
from kiwi.literature.remat.offload.offmate import GAP, offmate
from kiwi.literature.remat.offload.poet import Energy, poet
from kiwi.literature.remat.offload.pofo import pofo
from kiwi.literature.remat.offload.solve import (
    OFFLOAD_PLANNERS,
    OffloadMethod,
    OffloadResult,
    solve_offload,
)
from kiwi.literature.remat.rotor import MOST_UNITS
from kiwi.literature.remat.solve import PLANNERS, Method
from kiwi.memory.residency import Residency
from kiwi.messages import Note, topics
from kiwi.options import Settings
from kiwi.planners.planner import with_schedule
from kiwi.plans.plan import Plan
from kiwi.problem.build import PlanningProblem
from kiwi.problem.solved import Solved, Start
from kiwi.problem.step import StepToPlan
from kiwi.problem.translation import copies_that_follow
from kiwi.sizes import format_bytes, format_seconds
from kiwi.solver import SolveStatus
from kiwi.solver.schedule import Schedule

UNLIMITED_BYTES = 1 << 50
"""The host memory if the caller names no host budget. The papers assume that it suffices."""


@dataclass(frozen=True)
class OffloadingPlanner(OneDevicePlanner):
    """A planner of a paper that recomputes values and copies values to the host."""

    offloads: ClassVar[bool] = True

    @abstractmethod
    def offload_method(self) -> OffloadMethod:
        """Returns the method that finds a schedule with copies, with this planner's parameters."""

    def method(self) -> Method:
        """Returns the method that finds a schedule without copies, if the planner has one."""
        raise NotImplementedError

    def copies(self, settings: Settings) -> bool:
        """Returns whether the planner copies values to the host under these settings."""
        return True

    def formulate(
        self,
        step: StepToPlan,
        budget_bytes: int,
        settings: Settings,
        *,
        offered: tuple[tuple[Residency, ...], ...] = (),
        kernels: KernelGraph | None = None,
    ) -> PlanningProblem:
        """Returns the problem of every planner, with host memory offered if values are copied."""
        if self.copies(settings):
            host_bytes = settings.host_budget_bytes or UNLIMITED_BYTES
            settings = replace(settings, host_budget_bytes=host_bytes)
        return super().formulate(step, budget_bytes, settings, offered=offered, kernels=kernels)

    def plan(
        self, step: StepToPlan, budget_bytes: int, tools: Tools, start: Start | None = None
    ) -> Plan:
        """Returns the plan of the fastest schedule whose compiled program is within the budget.

        Raises the errors of `OneDevicePlanner.plan`.
        """
        settings = tools.settings
        if not self.copies(settings):
            return super().plan(step, budget_bytes, tools, start)
        one_device = self.to_schedule(step, budget_bytes, settings, start)
        base = replace(one_device.base, host_limit_bytes=settings.host_limit_bytes)
        one_device = replace(one_device, base=base)
        host = host_of(one_device, settings.host_limit_bytes)
        allowed = tools.allowance.part(1 / shares.SCHEDULE_ROUNDS)

        def found_within(limit_bytes: int, host: Host) -> Plan:
            offload_result = solve_offload(
                one_device.graph,
                host,
                limit_bytes,
                self.name,
                max(allowed.seconds, shares.LEAST_SECONDS),
                settings.seed,
                planned_seconds=allowed.planned_seconds,
                method=self.offload_method(),
            )
            return self._emitted(step, one_device, offload_result)

        def plan_within(limit_bytes: int) -> Plan:
            plan = found_within(limit_bytes, host)
            if host.memory_bytes is None:
                return plan
            # The emitted program may need more host memory than the schedule: a value is there
            # from its computation on, and a TPU's buffer has at least two elements.
            over_bytes = plan.estimate.host_peak_bytes - host.memory_bytes
            if over_bytes <= 0:
                return plan
            less_bytes = max(0, host.memory_bytes - over_bytes)
            return found_within(limit_bytes, replace(host, memory_bytes=less_bytes))

        search = LimitSearch(
            plan_within,
            budget_bytes,
            cause="XLA holds more than the schedule asks for.",
            instead=', or planner="joint"',
        )
        plan = ClosedLoop(self, search, budget_bytes, tools).run()
        if settings.host_budget_bytes is None and plan.execution.fetched:
            note = Note.of(
                topics.HOST_UNLIMITED,
                f"The host's memory is not limited: {format_bytes(plan.host_peak_bytes)} of it are "
                "used. host_memory_budget limits it.",
                host_peak_bytes=plan.host_peak_bytes,
            )
            plan = replace(plan, notes=(*plan.notes, note))
        return plan

    def _emitted(self, step: StepToPlan, one_device: OneDevice, found: OffloadResult) -> Plan:
        """Returns the plan of a simulated schedule, including the pointers of the barriers that it
        needs."""
        base, problem = one_device.base, one_device.solved.problem
        schedule, fetched = as_emitted(one_device.graph, found.schedule)
        solved = Solved(problem, offloading(problem, fetched))
        simulated = found.simulation
        result = replace(
            base.solve_result,
            status=SolveStatus.FEASIBLE,
            objective=simulated.seconds,
            bound=one_device.graph.once_seconds,
            seconds=found.seconds,
            solver=found.planner,
            message=f"As {self.name!r} simulates it: {format_seconds(simulated.seconds)}, "
            f"{format_bytes(simulated.peak_bytes)} on the device, "
            f"{format_bytes(simulated.host_peak_bytes)} on the host.",
            deterministic=found.deterministic,
        )
        plan = self.plan_of(step, solved, result, base.memory_budget_bytes)
        plan = replace(plan, host_limit_bytes=base.host_limit_bytes)
        held_bytes = pointer_bytes(replace(plan.execution, schedule=schedule))
        plan = with_schedule(plan, solved, schedule, held_bytes)
        return replace(plan, solve_result=replace(result, peak_bytes=plan.estimate.peak_bytes))


def host_of(one_device: OneDevice, memory_bytes: int | None) -> Host:
    """Returns the device's host, with `memory_bytes` for values; None for as much as they need."""
    problem = one_device.solved.problem
    bytes_per_second = problem.mesh.hardware.host_bandwidth_bytes_per_second
    graph = one_device.graph
    movable = {graph.operators[unit].outputs[0] for unit in _offered(problem)}
    stays = frozenset(range(len(graph.values))) - movable
    return Host(bytes_per_second, bytes_per_second, memory_bytes, stays=stays)


def _offered(problem: PlanningProblem) -> dict[int, int]:
    """Returns, for each unit that may be offloaded, the number of the residency that does so."""
    numbers: dict[int, int] = {}
    for node in problem.unit_nodes:
        for number, residency in enumerate(node.residency.options):
            if residency.fetch_at is not None:
                numbers.setdefault(node.unit, number)
    return numbers


def offloading(problem: PlanningProblem, fetched: frozenset[int]) -> tuple[int, ...]:
    """Returns the solution that offloads the results of the units `fetched` and keeps others."""
    offered = _offered(problem)
    units = (offered[node.unit] if node.unit in fetched else 0 for node in problem.unit_nodes)
    return copies_that_follow(problem, (*(0,) * len(problem.sources), *units))


def as_emitted(graph: RematGraph, schedule: OffloadSchedule) -> tuple[Schedule, frozenset[int]]:
    """Returns the steps of a schedule with its fetches, and the operators whose later steps are
    fetches."""
    fetched = frozenset(graph.producer[transfer.value] for transfer in schedule.inward)
    arriving: dict[int, list[int]] = {}
    for transfer in schedule.inward:
        arriving.setdefault(transfer.first, []).append(graph.producer[transfer.value])
    steps: list[int] = []
    for place, operator in enumerate(schedule.steps):
        steps += sorted(arriving.get(place, ()))
        if operator != IDLE:
            steps.append(operator)
    steps = _without_unread_fetches(graph, steps, fetched)
    return Schedule(tuple(steps)), frozenset(unit for unit in fetched if steps.count(unit) > 1)


def _without_unread_fetches(
    graph: RematGraph, steps: Sequence[int], fetched: frozenset[int]
) -> list[int]:
    """Returns `steps` without superfluous fetches.

    A fetch is superfluous if nothing reads its value before the next fetch of the value or the end.
    """
    kept: list[int] = []
    is_read: dict[int, bool] = {}
    first = {operator: place for place, operator in reversed(list(enumerate(steps)))}
    for place in reversed(range(len(steps))):
        operator = steps[place]
        if operator in fetched and first[operator] != place:
            if is_read.get(operator, False):
                kept.append(operator)
            is_read[operator] = False
            continue
        kept.append(operator)
        for writer in graph.predecessors(operator):
            is_read[writer] = True
    return kept[::-1]


@dataclass(frozen=True)
class FastSA(OffloadingPlanner):
    """FastSA: simulated annealing of recomputation and order, and of fetches within a host budget.

    Imanishi et al., NeurIPS 2023: equation 1, algorithm 1; fetches by appendix B.3.

    - `first_moves`, `second_moves`: the largest number of changes that each of the two stages
      tries.
    """

    name: str = "fastsa"
    description: str = "on one device: schedules by simulated annealing, quickly"
    first_moves: int = FIRST_STAGE.moves
    second_moves: int = SECOND_STAGE.moves

    def copies(self, settings: Settings) -> bool:
        """Returns whether there is a budget of host memory."""
        return bool(settings.host_budget_bytes)

    def _with_moves(self, function: Callable[..., Any]) -> Callable[..., Any]:
        first = replace(FIRST_STAGE, moves=self.first_moves)
        second = replace(SECOND_STAGE, moves=self.second_moves)
        return functools.partial(function, first=first, second=second)

    def method(self) -> Method:
        """Returns the method that runs both stages without copies."""
        return replace(PLANNERS["fastsa"], find=self._with_moves(fastsa))

    def offload_method(self) -> OffloadMethod:
        """Returns the method that runs plain FastSA and then tries several prices of copies."""
        return replace(OFFLOAD_PLANNERS["fastsa"], find=self._with_moves(fastsa_offload))


@dataclass(frozen=True)
class OffMate(OffloadingPlanner):
    """OffMate: each block keeps its activations, computes them again or sends them to the host.

    Zhao et al. 2024; Zhao's thesis, equations 4.1 to 4.23. Weights and the optimizer's state stay
    on the device, because a plan keeps arguments there.

    - `gap`: the relative gap at which the solver of the integer program stops.
    """

    name: str = "offmate"
    description: str = "on one device: keep, run again or send blocks to the host"
    gap: float = GAP

    def offload_method(self) -> OffloadMethod:
        """Returns the method that solves OffMate's integer program with HiGHS."""
        return replace(OFFLOAD_PLANNERS["offmate"], find=functools.partial(offmate, gap=self.gap))


@dataclass(frozen=True)
class Poet(OffloadingPlanner):
    """POET: Checkmate's integer program with a second memory, for least time or least energy.

    Patil et al., ICML 2022, section 4.

    - `compute_watts`, `joules_per_byte`: the energy of computing and of copies. If both are zero,
      the planner looks for the schedule of least time.
    - `deadline_seconds`: the largest time of the whole step when energy is minimised.
    """

    name: str = "poet"
    description: str = "on one device: recomputation and paging, an integer program"
    compute_watts: float = 0.0
    joules_per_byte: float = 0.0
    deadline_seconds: float = math.inf

    def offload_method(self) -> OffloadMethod:
        """Returns the method that solves POET's integer program with HiGHS."""
        energy = None
        if self.compute_watts or self.joules_per_byte:
            energy = Energy(self.compute_watts, self.joules_per_byte, self.deadline_seconds)
        return replace(OFFLOAD_PLANNERS["poet"], find=functools.partial(poet, energy=energy))


@dataclass(frozen=True)
class Pofo(OffloadingPlanner):
    """POFO: each stage of a chain stays, goes to the host or runs again, by dynamic programming.

    Beaumont, Eyraud-Dubois and Shilova, NeurIPS 2021, algorithm 1.

    - `slots`: the number of memory units in the dynamic program's table for stages that run again.
    """

    name: str = "pofo"
    description: str = "on one device: stages of a chain stay, go to the host or run again"
    slots: int = MOST_UNITS

    def offload_method(self) -> OffloadMethod:
        """Returns the method: a dynamic program, which the time limit does not interrupt."""
        return replace(
            OFFLOAD_PLANNERS["pofo"], find=functools.partial(pofo, most_units=self.slots)
        )
