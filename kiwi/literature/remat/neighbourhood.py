"""Large neighbourhoods: CP-SAT plans all recomputations of some operators anew.

The model is Moccasin's (Bartan et al., ICML 2023) for a few *free* operators. Other computations
stay where they are. They form the *frame*: the schedule without the recomputations of free
operators. With the given order as frame and all operators free, the model covers the whole graph,
as in the paper.

**Sets.** Frame steps i, in order. Free operators k with ranks 1 … m by first computation. *Touched*
values v: the values that free operators read or write. Slot i (m + 1) is frame step i. The m slots
before it are places for one recomputation of each free operator, by rank, so that a recomputation
finds inputs that are recomputed in the same place.

**Data.** time(k), bytes of values, temporary bytes of operators, the budget, all integers.

**Variables.** `active[k, c]`: whether copy c of k exists. `start[k, c]`: its slot, behind the first
computation of k. `end`, for each computation of a touched value: the slot until which the value is
retained.

**Minimise** the sum of time(k) active[k, c].

**Constraints**

- (a) Each read of a touched value lies in the retention of some computation before it.
- (b) Results are retained until the end.
- (c) In every slot, the retained touched values, the frame's other values, and temporary memory are
  within the budget.
- (d) Copies of an operator are used in turn.
- (e) The schedule takes less time than the given one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from kiwi.literature.remat.graph import RematGraph
from kiwi.literature.remat.result import Finding, Task
from kiwi.literature.remat.simulate import LiveRange, held_bytes, live_ranges, memory_bytes
from kiwi.solver.schedule import Schedule

Amount = cp_model.IntVar | int
TIME_UNITS = 10**9
"""The number of integer units into which the time of all operators is divided."""
MOST_COPIES = 2
"""The largest number of computations of an operator in Moccasin's own program."""
WORKERS = 8
"""The number of CP-SAT's strategies, which take turns."""
WORK_PER_SECOND = 0.15
"""The work planned for each second of the time limit, in CP-SAT's deterministic time."""


@dataclass(frozen=True)
class Frame:
    """A schedule without the recomputations of free operators.

    `again[k]` holds, for each recomputation of free operator k, the frame step before which it was.
    """

    steps: tuple[int, ...]
    again: dict[int, list[int]]

    @classmethod
    def of(cls, schedule: Schedule, free: Sequence[int]) -> "Frame":
        """Returns the frame of `schedule` without the recomputations of the operators `free`."""
        steps: list[int] = []
        again: dict[int, list[int]] = {k: [] for k in free}
        seen: set[int] = set()
        for k in schedule.steps:
            if k in again and k in seen:
                again[k].append(len(steps))
            else:
                steps.append(k)
            seen.add(k)
        return cls(tuple(steps), again)


@dataclass(frozen=True)
class _Copy:
    """A computation of a touched value.

    - `start`: the slot of the computation.
    - `end`: the slot until which the value is retained.
    - `active`: whether the computation exists; None if it always does.
    """

    start: Amount
    end: cp_model.IntVar
    active: cp_model.IntVar | None


class RetentionModel:
    """The program under construction without its objective, a method for each constraint family.

    A free operator may have as many recomputations as in the schedule, or `least_copies` if that is
    more.
    """

    def __init__(
        self, graph: RematGraph, frame: Frame, budget_bytes: int, least_copies: int = 1
    ) -> None:
        self.graph, self.frame, self.least_copies = graph, frame, least_copies
        self.unit_seconds = _time_unit(graph)
        self.width = len(frame.again) + 1
        self.last = len(frame.steps) * self.width
        self.model = cp_model.CpModel()
        self.first: dict[int, int] = {}
        for place, k in enumerate(frame.steps):
            self.first.setdefault(k, place)
        by_first = sorted(frame.again, key=lambda k: self.first[k])
        self.rank = {k: place + 1 for place, k in enumerate(by_first)}
        operators = graph.operators
        self.touched = {
            v
            for k in frame.again
            for v in (*operators[k].inputs, *operators[k].outputs)
            if graph.producer[v] >= 0
        }
        self.active: dict[tuple[int, int], cp_model.IntVar] = {}
        self.start: dict[tuple[int, int], cp_model.IntVar] = {}
        self.copies: dict[int, list[_Copy]] = {v: [] for v in self.touched}
        self._add_frame_copies()
        self._add_free_copies()
        self._add_readings()
        self._add_budget(budget_bytes)
        self._add_hints()

    def _add_frame_copies(self) -> None:
        for place, k in enumerate(self.frame.steps):
            for v in self.graph.operators[k].outputs:
                if v in self.touched:
                    self._add_copy(v, place * self.width, None)

    def _add_copy(self, v: int, start: Amount, active: cp_model.IntVar | None) -> None:
        end = self.model.new_int_var(0, self.last, "")
        self.model.add(end >= start)
        self.copies[v].append(_Copy(start, end, active))

    def _add_free_copies(self) -> None:
        """Adds the copies of free operators, with the constraints (d)."""
        for k, places in self.frame.again.items():
            slots = [self._slot(k, p) for p in range(self.first[k] + 1, len(self.frame.steps))]
            domain = cp_model.Domain.from_values(slots)
            for c in range(max(self.least_copies, len(places)) if slots else 0):
                active = self.active[k, c] = self.model.new_bool_var("")
                start = self.start[k, c] = self.model.new_int_var_from_domain(domain, "")
                if c:
                    self.model.add_implication(active, self.active[k, c - 1])
                    self.model.add(self.start[k, c - 1] < start).only_enforce_if(active)
                for v in self.graph.operators[k].outputs:
                    self._add_copy(v, start, active)

    def _slot(self, k: int, place: int) -> int:
        """Returns the slot of free operator k before frame step `place`."""
        return (place - 1) * self.width + self.rank[k]

    def _add_readings(self) -> None:
        """Adds the constraints (a) and (b). Results are read at the end."""
        self._add_reading(self.graph.results, self.last, None)
        for place, k in enumerate(self.frame.steps):
            self._add_reading(self.graph.operators[k].inputs, place * self.width, None)
        for (k, c), active in self.active.items():
            self._add_reading(self.graph.operators[k].inputs, self.start[k, c], active)

    def _add_reading(
        self, values: Iterable[int], time: Amount, active: cp_model.IntVar | None
    ) -> None:
        for v in self.touched.intersection(values):
            choices = []
            for copy in self.copies[v]:
                if isinstance(copy.start, int) and isinstance(time, int) and copy.start >= time:
                    continue
                reads = self.model.new_bool_var("")
                if copy.active is not None:
                    self.model.add_implication(reads, copy.active)
                self.model.add(copy.start < time).only_enforce_if(reads)
                self.model.add(copy.end >= time).only_enforce_if(reads)
                choices.append(reads)
            self.model.add_bool_or(choices if active is None else [*choices, ~active])

    def _add_budget(self, budget_bytes: int) -> None:
        """Adds the constraints (c)."""
        intervals, demands = [], []
        for v, copies in self.copies.items():
            for copy in copies if self.graph.values[v].size_bytes else ():
                intervals.append(self._interval(copy))
                demands.append(self.graph.values[v].size_bytes)
        for (k, c), active in self.active.items():
            temporary = self.graph.operators[k].temporary_bytes
            if temporary:
                start = self.start[k, c]
                intervals.append(
                    self.model.new_optional_fixed_size_interval_var(start, 1, active, "")
                )
                demands.append(temporary)
        for place, (before, during) in enumerate(self._held_by_frame()):
            at = place * self.width
            parts = ((at - self.width + 1, self.width - 1, before), (at, 1, during))
            for start, length, held in parts:
                if held and length and start >= 0:
                    intervals.append(self.model.new_fixed_size_interval_var(start, length, ""))
                    demands.append(held)
        self.model.add_cumulative(intervals, demands, budget_bytes - self.graph.resident_bytes)

    def _interval(self, copy: _Copy) -> cp_model.IntervalVar:
        size = self.model.new_int_var(1, self.last + 1, "")
        if copy.active is None:
            return self.model.new_interval_var(copy.start, size, copy.end + 1, "")
        return self.model.new_optional_interval_var(copy.start, size, copy.end + 1, copy.active, "")

    def _held_by_frame(self) -> list[tuple[int, int]]:
        """Returns the bytes that the frame holds just before each of its steps and while it runs.

        Touched values are left out. The temporary memory of the step counts while it runs.
        """
        schedule, count = Schedule(self.frame.steps), len(self.frame.steps)
        others = (
            live_range
            for live_range in live_ranges(self.graph, schedule)
            if live_range.value not in self.touched
        )
        before = [
            LiveRange(live_range.value, live_range.first + 1, live_range.last)
            for live_range in others
        ]
        during = memory_bytes(self.graph, schedule, hidden=self.touched)
        return list(zip(held_bytes(self.graph, before, count), during, strict=True))

    def recomputation_units(self) -> cp_model.LinearExprT:
        """Returns the time of all recomputations of free operators, in integer units."""
        return sum(self.units(k) * active for (k, _), active in self.active.items())

    def units(self, k: int) -> int:
        """Returns the time of operator k in integer units."""
        return round(self.graph.operators[k].compute_seconds / self.unit_seconds)

    def _add_hints(self) -> None:
        """Adds hints that repeat the schedule as it is."""
        for (k, c), active in self.active.items():
            places = self.frame.again[k]
            self.model.add_hint(active, c < len(places))
            if c < len(places):
                self.model.add_hint(self.start[k, c], self._slot(k, places[c]))

    def solve(self, solver: cp_model.CpSolver) -> tuple[Schedule | None, bool]:
        """Returns the frame with the recomputations of the solution, or None, and whether the
        search was complete."""
        status = solver.solve(self.model)
        complete = status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None, complete
        slots = [(place * self.width, k) for place, k in enumerate(self.frame.steps)]
        slots += [
            (solver.value(self.start[key]), key[0])
            for key, active in self.active.items()
            if solver.boolean_value(active)
        ]
        return Schedule(tuple(k for _, k in sorted(slots))), complete


def _time_unit(graph: RematGraph) -> float:
    """Returns the seconds of one integer unit of time: 1 if all times are integers already."""
    seconds = [operator.compute_seconds for operator in graph.operators]
    if all(float(value).is_integer() for value in seconds) and sum(seconds) < TIME_UNITS:
        return 1.0
    return (graph.once_seconds or 1.0) / TIME_UNITS


def improve(
    graph: RematGraph,
    schedule: Schedule,
    free: Sequence[int],
    budget_bytes: int,
    effort_seconds: float,
    wall_seconds: float,
) -> tuple[Schedule | None, bool]:
    """Returns a faster schedule that differs only in the recomputations of `free`, or None.

    The second result says whether the search was complete. After a complete search without a
    schedule there is none.

    - `schedule`: a valid schedule, within the budget or not, whose time is to be beaten.
    - `effort_seconds`: the limit in CP-SAT's deterministic time.
    - `wall_seconds`: the limit by the clock.
    """
    frame = Frame.of(schedule, free)
    again = [k for k, places in frame.again.items() for _ in places]
    if not again:
        return None, True
    built = RetentionModel(graph, frame, budget_bytes)
    total, now = built.recomputation_units(), sum(built.units(k) for k in again)
    built.model.add(total <= now - 1)  # (e)
    built.model.minimize(total)
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = max(0.01, effort_seconds)
    solver.parameters.max_time_in_seconds = max(0.01, wall_seconds)
    solver.parameters.num_workers = 1
    return built.solve(solver)


def moccasin(task: Task, copies: int = MOST_COPIES) -> Finding:
    """Returns the best schedule with at most `copies` computations of each operator, by CP-SAT.

    The program is the retention model around the given order, with `copies` - 1 recomputations of
    every operator. With as many copies as there are operators, the program has the same schedules
    as Checkmate. CP-SAT's own count of its work ends the search after about the planned time. The
    clock ends it on a far slower machine.
    """
    graph = task.graph
    free = [k for k in graph.order if graph.operators[k].recomputable]
    frame = Frame(graph.order, {k: [] for k in free})
    built = RetentionModel(graph, frame, task.budget_bytes, copies - 1)
    once = sum(map(built.units, graph.order))
    built.model.minimize(once + built.recomputation_units())
    solver = cp_model.CpSolver()
    work = max(0.01, WORK_PER_SECOND * task.time_limit_seconds)
    solver.parameters.max_time_in_seconds = max(0.01, task.remaining_seconds())
    solver.parameters.max_deterministic_time = work
    solver.parameters.random_seed = task.seed % (1 << 30)
    # Strategies that take turns give repeatable results, unlike a race.
    solver.parameters.num_workers = WORKERS
    solver.parameters.interleave_search = True
    schedule, complete = built.solve(solver)
    # CP-SAT ended by its work only if all of it is done. Otherwise the clock ended the search.
    by_work = complete or solver.response_proto.deterministic_time >= work
    if schedule is None:
        return Finding(None, family_is_infeasible=complete, deterministic=by_work)
    bound_seconds = solver.best_objective_bound * built.unit_seconds
    return Finding(schedule, bound_seconds, iterations=solver.num_branches, deterministic=by_work)
