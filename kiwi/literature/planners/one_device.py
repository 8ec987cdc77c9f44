"""Plans for one device by schedules of `kiwi.literature.remat`: recomputation and order alone.

1. The step is planned without a limit and without recomputation. This is the plan to be scheduled.
2. A planner finds a schedule of its units within the budget.
3. Steps are reordered if XLA's heap would waste much memory (`repacked`).
4. The schedule is emitted and compiled like any plan. While the compiled peak is over the budget,
   steps are reordered again, because orders that need equally much compile to different peaks. If
   no order helps, the limit is lowered by the excess. The step is then planned again with another
   seed, from the last schedule if the planner can use one (`kiwi.campaign.limit_search`).

**Order.** A planner limits the sum of live bytes. XLA's heap needs more, because free memory lies
in pieces (`kiwi.memory.heap`). XLA may also run a step before its predecessor
(`kiwi.emit.barriers`) while the operands of both are live. Many orders of the same computations
have the same time and nearly the same peak, but another heap (`kiwi.memory.order_search`).
"""

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from kiwi.campaign import shares
from kiwi.campaign.closed_loop import ClosedLoop
from kiwi.campaign.limit_search import LimitSearch
from kiwi.campaign.proposer import Orders
from kiwi.campaign.tools import Tools
from kiwi.emit.barriers import POINTER_BYTES, barriers
from kiwi.emit.execution import Execution
from kiwi.literature.planners.remat_graph import one_device_strategies, remat_graph
from kiwi.literature.remat import RematGraph, RematResult, Search
from kiwi.literature.remat.solve import Method
from kiwi.memory.order_search import MovingBuffer, Steps, better_order, needed_bytes
from kiwi.options import Settings
from kiwi.planners.planner import Planner, with_schedule
from kiwi.plans.plan import Plan
from kiwi.problem.solved import Solved, Start
from kiwi.problem.step import StepToPlan
from kiwi.solver import SolveResult
from kiwi.solver.result import conclude
from kiwi.solver.schedule import Schedule

MORE_FENCES = 1.2
"""The factor of memory for fences. Schedules with recomputation have more fences than the plan that
computes everything once."""

MOST_SEARCHES = 3
"""The largest number of searches for an order before a schedule is compiled."""
SEED_STRIDE = 1000

Find = Callable[[int, int], RematResult]
"""Returns a schedule within a limit in bytes, for a seed."""

AIM = 0.985
"""The share of the budget that a simulated heap may fill before the search for an order ends. A
compiled heap may be larger than the simulated one, because neighbouring steps may run in another
order.
"""


@dataclass(frozen=True)
class Details:
    """What XLA's heap depends on beside a `RematGraph`.

    - `temporaries`: for each operator, the sizes in bytes of the buffers that it holds while it
      runs.
    - `events`: as in `kiwi.memory.order_search.Steps`, for each operator.
    """

    temporaries: tuple[tuple[int, ...], ...]
    events: tuple[int, ...]


def pointer_bytes(execution: Execution) -> int:
    """Returns the bytes of pointers that XLA holds throughout the step: those of the tuples that
    pass through barriers, and those of the tuple of results."""
    results = len(execution.units.graph.program.results)
    return barriers(execution).pointer_bytes + POINTER_BYTES * results


@dataclass(frozen=True, eq=False)
class OneDevice:
    """A step on one device, to be scheduled.

    - `base`: the plan that computes everything once, in the given order.
    - `graph`: the graph of its units. `pointer_bytes` of its resident memory are for tuples; this
      is more than `base` needs.
    - `details`: the heap's details of the graph's operators.
    """

    base: Plan
    solved: Solved
    graph: RematGraph
    pointer_bytes: int
    details: Details

    @classmethod
    def of(cls, base: Plan, solved: Solved) -> "OneDevice":
        """Returns the step of `base`, a plan for one device with the solution `solved`."""
        kernels = base.execution.kernels
        held_bytes = int(MORE_FENCES * pointer_bytes(base.execution))
        strategies = one_device_strategies(kernels, base.mesh)
        temporaries = tuple(strategy.buffers_while_running for strategy in strategies)
        events = tuple(int(step.pointer_bytes > 0) for step in barriers(base.execution).steps)
        graph = remat_graph(kernels, strategies, held_bytes)
        return cls(base, solved, graph, held_bytes, Details(temporaries, events))


@dataclass(frozen=True)
class OneDevicePlanner(Planner):
    """A planner of recomputation alone, whose search is in `kiwi.literature.remat`."""

    heeds_hints: ClassVar[bool] = True
    is_sharding: ClassVar[bool] = False

    @abstractmethod
    def method(self) -> Method:
        """Returns the method that finds a schedule, with the parameters of this planner."""

    def plan(
        self, step: StepToPlan, budget_bytes: int, tools: Tools, start: Start | None = None
    ) -> Plan:
        """Returns the plan of the fastest schedule whose compiled program is within the budget.

        Raises `InfeasibleBudgetError` with the smallest budget known to be feasible and a proven
        bound, `BudgetNotMetError` if no schedule fits as compiled, and `InvalidProblemError` if the
        planner cannot take the graph.
        """
        one_device = self.to_schedule(step, budget_bytes, tools.settings, start)
        allowed = tools.allowance.part(1 / shares.SCHEDULE_ROUNDS)
        search = Search(
            one_device.graph,
            self.name,
            max(allowed.seconds, shares.LEAST_SECONDS),
            planned_seconds=allowed.planned_seconds,
            method=self.method(),
        )
        return self.tightened(one_device, search.within, budget_bytes, tools)

    def tightened(self, step: OneDevice, find: Find, budget_bytes: int, tools: Tools) -> Plan:
        """Returns the plan of `find`'s fastest schedule that fits the budget as compiled.

        Raises the error of `find` for the budget itself, and `BudgetNotMetError`.
        """
        step = replace(step, base=replace(step.base, memory_budget_bytes=budget_bytes))
        seeds = itertools.count(tools.settings.seed)

        def plan_within(limit_bytes: int) -> Plan:
            seed = next(seeds)
            return scheduled(step, find(limit_bytes, seed), limit_bytes, seed)

        def reordered(plan: Plan, limit_bytes: int, over_bytes: int) -> Plan | None:
            return in_another_order(step, plan, limit_bytes, over_bytes, next(seeds))

        search = LimitSearch(
            plan_within,
            budget_bytes,
            cause="XLA holds more than the schedule asks for.",
            varies=True,
            other_order=reordered,
            orders=Orders(shares.SCHEDULE_ORDERS, of_all=shares.MOST_SCHEDULE_ORDERS, at_once=True),
        )
        return ClosedLoop(self, search, budget_bytes, tools).run()

    def to_schedule(
        self, step: StepToPlan, budget_bytes: int, settings: Settings, start: Start | None = None
    ) -> OneDevice:
        """Returns the step with everything kept.

        On one device each unit has one strategy, and the first residency of a unit keeps its
        results.
        """
        origin = start or Start(self.formulate(step, budget_bytes, settings))
        problem = origin.problem
        solved = Solved(problem, (0,) * len(problem.problem.nodes))
        assert all(len(node.strategies) == 1 for node in problem.unit_nodes)
        unlimited = replace(problem.problem, limit_bytes=None)
        result = conclude(unlimited, tuple(solved.solution), -math.inf, solver=self.name)
        return OneDevice.of(self.plan_of(step, solved, result, budget_bytes), solved)


def scheduled(step: OneDevice, result: RematResult, limit_bytes: int, seed: int = 0) -> Plan:
    """Returns the plan of a schedule that was found for a step.

    Steps are reordered, within the limit, if XLA's heap would exceed the plan's budget.
    """
    base = step.base
    schedule = _repacked(step, result.schedule, limit_bytes, base.memory_budget_bytes, seed)
    return _with_schedule(step, _solve_result(base.solve_result, result), schedule)


def in_another_order(
    step: OneDevice, plan: Plan, limit_bytes: int, over_bytes: int, seed: int
) -> Plan | None:
    """Returns a plan of `scheduled` with its steps reordered again; None if no order changes.

    `over_bytes` is the excess of the compiled program over the budget. It is subtracted from the
    target of the heap's size.
    """
    before = plan.execution.schedule
    aimed_bytes = step.base.memory_budget_bytes - over_bytes
    schedule = _repacked(step, before, limit_bytes, aimed_bytes, seed, anew=True)
    if schedule == before:
        return None
    return _with_schedule(step, plan.solve_result, schedule)


def _repacked(
    step: OneDevice,
    before: Schedule,
    limit_bytes: int,
    budget_bytes: int,
    seed: int,
    *,
    anew: bool = False,
) -> Schedule:
    """Returns the first order found whose heap is within the plan's budget, fences included.

    If no search finds one, returns the order with the smallest heap.
    """
    graph, orders = step.graph, []
    for number in range(MOST_SEARCHES):
        search_seed, details = seed + number * SEED_STRIDE, step.details
        order = repacked(graph, before, limit_bytes, budget_bytes, search_seed, details, anew=anew)
        held_bytes = pointer_bytes(replace(step.base.execution, schedule=order))
        heap_bytes = needed_bytes(steps_of(graph, order, details)) - step.pointer_bytes + held_bytes
        orders.append((heap_bytes, order))
        if heap_bytes <= step.base.memory_budget_bytes:
            break
    return min(orders, key=lambda candidate: candidate[0])[1]


def _with_schedule(step: OneDevice, answer: SolveResult, schedule: Schedule) -> Plan:
    """Returns the plan of a step under a schedule, including its barriers' pointers."""
    held_bytes = pointer_bytes(replace(step.base.execution, schedule=schedule))
    plan = with_schedule(step.base, step.solved, schedule, held_bytes)
    return replace(plan, solve_result=replace(answer, peak_bytes=plan.estimate.peak_bytes))


def _solve_result(base: SolveResult, result: RematResult) -> SolveResult:
    """Returns the planner's outcome without its peak.

    The bound is the time of computing everything once.
    """
    return replace(
        base,
        status=result.status,
        objective=result.compute_seconds,
        bound=result.bound_seconds,
        seconds=result.seconds,
        solver=result.planner,
        message="",
        iterations=result.iterations,
        deterministic=result.deterministic,
    )


def repacked(
    graph: RematGraph,
    schedule: Schedule,
    limit_bytes: int,
    budget_bytes: int,
    seed: int = 0,
    details: Details | None = None,
    *,
    anew: bool = False,
) -> Schedule:
    """Returns the same computations in an order whose heap is well within the budget, or smaller.

    - `schedule`: a valid schedule whose peak is within `limit_bytes`. The peak of the result is,
      too.
    - `details`: the heap's details of the operators; by default one buffer for each operator.
    - `anew`: as in `kiwi.memory.order_search.better_order`.
    """
    steps = steps_of(graph, schedule, details)
    order = better_order(steps, limit_bytes, AIM * budget_bytes, seed, anew=anew)
    return Schedule(tuple(schedule.steps[k] for k in order))


def steps_of(graph: RematGraph, schedule: Schedule, details: Details | None = None) -> Steps:
    """Returns the steps of a schedule for the search for an order.

    In any order, each step keeps reading the same computations.
    """
    if details is None:
        temporaries = tuple((operator.temporary_bytes,) for operator in graph.operators)
        details = Details(temporaries, (0,) * len(graph.operators))
    return _Flow(graph, schedule, details).steps()


class _Flow:
    """Follows values through a schedule. `_latest` holds the last step that computed a value."""

    def __init__(self, graph: RematGraph, schedule: Schedule, details: Details) -> None:
        self._graph, self._steps, self._details = graph, schedule.steps, details
        self._precedes: set[tuple[int, int]] = set()
        self._latest: dict[int, int] = {}
        self._readers: dict[int, list[int]] = {}
        self._buffers: list[MovingBuffer] = []

    def steps(self) -> Steps:
        """Returns all steps with their buffers, and the pairs of steps whose order must stay."""
        for step, index in enumerate(self._steps):
            operator = self._graph.operators[index]
            for value in operator.inputs:
                self._read(value, step)
            for value in operator.outputs:
                self._compute(value, step)
            temporaries = self._details.temporaries[index]
            self._buffers += [MovingBuffer(size, step, is_temporary=True) for size in temporaries]
        for value in self._graph.results:
            self._read(value, len(self._steps))
        for value in self._latest:
            self._end(value)
        return Steps(
            (1,) * len(self._steps),
            frozenset(self._precedes),
            tuple(self._buffers),
            swaps=True,
            constant_bytes=self._graph.resident_bytes,
            events=tuple(self._details.events[index] for index in self._steps),
        )

    def _read(self, value: int, step: int) -> None:
        if value in self._latest:
            self._readers[value].append(step)

    def _compute(self, value: int, step: int) -> None:
        """Notes a computation of `value`, which must follow all reads of the value's earlier
        computation."""
        if value in self._latest:
            before = (self._latest[value], *self._readers[value])
            self._precedes.update((earlier, step) for earlier in before if earlier != step)
            self._end(value)
        self._latest[value], self._readers[value] = step, []

    def _end(self, value: int) -> None:
        first, readers = self._latest[value], tuple(self._readers[value])
        self._precedes.update((first, reader) for reader in readers if reader < len(self._steps))
        self._buffers.append(MovingBuffer(self._graph.values[value].size_bytes, first, readers))
