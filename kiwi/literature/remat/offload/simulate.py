"""The one account of a schedule with copies to the host: valid, how much memory, how long.

Every number that Kiwi reports about an `OffloadSchedule` comes from this module.

**Memory.** A computation or a transfer makes a copy of a value in one of the two memories. It takes
its room from the first step of what makes it to the last step of its last use, before another copy
of the value is made there. What a transfer copies stays until the transfer ends. Results stay until
the end, on the host if they are there then. Inputs of the graph begin and end in the same memory;
those at home on the host take room there throughout. A step holds all copies that it touches, and
the operator's temporary memory.

**Time.** Steps follow one another. In a step the device computes, both directions of the link copy
and the host updates, all at once; transfers may be cut at the borders of steps. The time of a step
is the largest of the four. How much of a transfer is copied in which of its steps is free: the time
is the least over all ways, as follows. On a channel, jobs (first step, last step, seconds) can be
done if and only if no run of steps is shorter than the jobs that lie within it (preemptive earliest
deadline first). These are covering constraints over intervals of steps, which are met at least cost
by lengthening, from the first step to the last, each step by what the runs that end with it lack.

So any execution with one stream per channel has a schedule as long: what a stream does between the
starts of two operators belongs to the step of the first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kiwi.errors import InvalidProblemError
from kiwi.literature.remat.graph import RematGraph
from kiwi.literature.remat.offload.host import IDLE, Host, OffloadSchedule, Transfer
from kiwi.literature.remat.result import Finding, Task
from kiwi.literature.remat.simulate import LiveRange, held_bytes
from kiwi.messages import topics

Job = tuple[int, int, float]
"""First step, last step, seconds."""


@dataclass(frozen=True)
class OffloadSimulation:
    """The memory of a valid schedule at most and during each step, and its time.

    `compute_seconds`: of the operators on the device. `step_seconds`: of each step, with waiting.
    """

    peak_bytes: int
    host_peak_bytes: int
    compute_seconds: float
    step_seconds: tuple[float, ...]
    memory_bytes: tuple[int, ...]
    host_memory_bytes: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """The time of the whole step."""
        return sum(self.step_seconds)


def violations(graph: RematGraph, host: Host, schedule: OffloadSchedule) -> list[str]:
    """Reasons for which `schedule` cannot be executed; empty if it can."""
    return _Walk(graph, host, schedule).found


def simulate(graph: RematGraph, host: Host, schedule: OffloadSchedule) -> OffloadSimulation:
    """Validity, peaks and time of `schedule`; raises `kiwi.errors.InvalidProblemError` if the
    schedule cannot be executed."""
    walk = _Walk(graph, host, schedule)
    if walk.found:
        more = ", and more" if walk.found[1:] else ""
        raise InvalidProblemError(
            f"the schedule is not valid: {walk.found[0]}{more}", topic=topics.SCHEDULE
        )
    count = len(schedule.steps)
    temporary = [graph.operators[k].temporary_bytes if k != IDLE else 0 for k in schedule.steps]
    held = held_bytes(graph, map(_Copy.live_range, walk.device.copies), count)
    on_device = tuple(map(sum, zip(held, temporary, strict=True)))
    home_bytes = graph.bytes_of(schedule.host_inputs)
    away = [each for each in walk.host.copies if each.value not in schedule.host_inputs]
    held = held_bytes(graph, map(_Copy.live_range, away), count)
    on_host = tuple(home_bytes + each for each in held)
    compute = [graph.operators[k].compute_seconds if k != IDLE else 0.0 for k in schedule.steps]
    return OffloadSimulation(
        max(on_device, default=0),
        max(on_host, default=home_bytes),
        sum(compute),
        step_seconds(compute, channels(graph, host, schedule)),
        on_device,
        on_host,
    )


def without_unused_copies(
    graph: RematGraph, host: Host, schedule: OffloadSchedule
) -> OffloadSchedule:
    """A valid schedule without the transfers whose copies nothing uses."""
    while True:
        unused = _Walk(graph, host, schedule).unused
        if not unused:
            return schedule
        schedule = replace(
            schedule,
            outward=tuple(each for each in schedule.outward if (each, False) not in unused),
            inward=tuple(each for each in schedule.inward if (each, True) not in unused),
        )


def channels(graph: RematGraph, host: Host, schedule: OffloadSchedule) -> list[list[Job]]:
    """The jobs of the link outward, of the link inward, and of the host's processor."""
    sizes = [value.size_bytes for value in graph.values]
    seconds = {each.operator: each.host_seconds for each in host.updates}
    return [
        [(e.first, e.last, host.outward_seconds(sizes[e.value])) for e in schedule.outward],
        [(e.first, e.last, host.inward_seconds(sizes[e.value])) for e in schedule.inward],
        [(e.first, e.last, seconds[e.operator]) for e in schedule.host_runs],
    ]


def step_seconds(compute: Sequence[float], jobs: Iterable[Sequence[Job]]) -> tuple[float, ...]:
    """The least lengths of steps, given what the device computes in each, and jobs by channel."""
    lengths = np.array(compute, np.float64)
    ending: list[list[tuple[int, int, float]]] = [[] for _ in compute]
    due = []
    for number, channel in enumerate(jobs):
        due.append(np.zeros(len(compute)))
        for first, last, seconds in channel:
            ending[last].append((number, first, seconds))
    for step, ended in enumerate(ending):
        for number, first, seconds in ended:
            due[number][first] += seconds
        for number in {number for number, _, _ in ended}:
            lack = np.cumsum((due[number] - lengths)[step::-1]).max()
            lengths[step] += max(0.0, float(lack))
    return tuple(lengths.tolist())


@dataclass
class _Copy:
    """One copy of a value: from step `first` to its last use so far, of use from `ready` on."""

    value: int
    first: int
    last: int
    ready: int

    def live_range(self) -> LiveRange:
        """The interval in which it holds memory."""
        return LiveRange(self.value, self.first, self.last)


@dataclass
class _Memory:
    """The copies of values in one memory, and for each value the latest."""

    copies: list[_Copy] = field(default_factory=list)
    latest: dict[int, _Copy] = field(default_factory=dict)

    def make(self, value: int, first: int, last: int) -> _Copy:
        copy = self.latest[value] = _Copy(value, first, last, last + 1)
        self.copies.append(copy)
        return copy

    def use(self, value: int, first: int, last: int) -> bool:
        """Whether the value is there in step `first`; it stays until `last` then."""
        copy = self.latest.get(value)
        if copy is None or copy.ready > first:
            return False
        copy.last = max(copy.last, last)
        return True


class _Walk:
    """A schedule step by step: which copies there are, and what cannot be done (`found`)."""

    def __init__(self, graph: RematGraph, host: Host, schedule: OffloadSchedule) -> None:
        host.check(graph)
        self.graph, self.updates = graph, {each.operator: each for each in host.updates}
        self.schedule = schedule
        self.device, self.host = _Memory(), _Memory()
        self.found: list[str] = []
        self._runs = [0] * len(graph.operators)
        self._replaced: set[int] = set()
        self._moved: list[tuple[Transfer, bool, _Copy]] = []
        self._check_intervals()
        if not self.found:
            self._begin()
            for step in range(len(schedule.steps)):
                self._take(step)
            self._end()

    @property
    def unused(self) -> set[tuple[Transfer, bool]]:
        """The transfers, inward or not, whose copies have no use behind them."""
        return {(each, inward) for each, inward, copy in self._moved if copy.last == each.last}

    def _check_intervals(self) -> None:
        schedule, graph = self.schedule, self.graph
        for each in (*schedule.outward, *schedule.inward, *schedule.host_runs):
            if not 0 <= each.first <= each.last < len(schedule.steps):
                self.found.append(f"{each} does not lie within the steps")
        if any(k != IDLE and not 0 <= k < len(graph.operators) for k in schedule.steps):
            self.found.append("a step computes an unknown operator")
        if any(each.operator not in self.updates for each in schedule.host_runs):
            self.found.append("the host runs what is no update")

    def _begin(self) -> None:
        for value, producer in enumerate(self.graph.producer):
            if producer < 0:
                memory = self.host if value in self.schedule.host_inputs else self.device
                memory.make(value, 0, 0).ready = 0

    def _take(self, step: int) -> None:
        """Updates the copies of a step: first those that the step uses, then those that
        it makes."""
        schedule, operator = self.schedule, self.schedule.steps[step]
        outward = [each for each in schedule.outward if each.first == step]
        inward = [each for each in schedule.inward if each.first == step]
        host_runs = [each for each in schedule.host_runs if each.first == step]
        for each in outward:
            self._use(self.device, each.value, step, each.last, "copies out")
        for each in inward:
            self._use(self.host, each.value, step, each.last, "fetches")
        for each in host_runs:
            for value in self.graph.operators[each.operator].inputs:
                self._use(self.host, value, step, each.last, "updates on the host with")
        for value in () if operator == IDLE else self.graph.operators[operator].inputs:
            self._use(self.device, value, step, step, "reads")
            if value in self._replaced:
                self.found.append(f"step {step} reads {self._name(value)} after its update")
        for each in outward:
            self._moved.append((each, False, self.host.make(each.value, step, each.last)))
        for each in inward:
            self._moved.append((each, True, self.device.make(each.value, step, each.last)))
        for each in host_runs:
            self._run(each.operator, step, each.last, self.host, self.device)
        if operator != IDLE:
            self._run(operator, step, step, self.device, self.host)

    def _use(self, memory: _Memory, value: int, first: int, last: int, verb: str) -> None:
        if not memory.use(value, first, last):
            self.found.append(f"step {first} {verb} {self._name(value)}, which is not there")

    def _run(self, operator: int, first: int, last: int, here: _Memory, there: _Memory) -> None:
        """Outputs, and what is overwritten: other copies of that are of no use any more."""
        update, name = self.updates.get(operator), self.graph.operators[operator].name
        self._runs[operator] += 1
        again = self.graph.operators[operator].recomputable and update is None
        if self._runs[operator] > 1 and not again:
            self.found.append(f"step {first} computes {name} again, which may run only once")
        for value in self.graph.operators[operator].outputs:
            here.make(value, first, last)
        for value in update.overwrites if update is not None else ():
            moving = (*self.schedule.outward, *self.schedule.inward)
            if any(e.value == value and e.first <= last and first <= e.last for e in moving):
                self.found.append(f"{name} overwrites {self._name(value)} while it is copied")
            there.latest.pop(value, None)
            if value in here.latest:
                here.latest[value].ready = last + 1
            self._replaced.add(value)

    def _end(self) -> None:
        end, last = len(self.schedule.steps), max(0, len(self.schedule.steps) - 1)
        for operator, runs in enumerate(self._runs):
            if not runs:
                self.found.append(f"{self.graph.operators[operator].name} is never computed")
        for value, producer in enumerate(self.graph.producer):
            if producer < 0:
                at_home = value in self.schedule.host_inputs
                home = self.host if at_home else self.device
                is_old = at_home and value not in self._replaced
                if not is_old and not home.use(value, end, last):
                    self.found.append(f"{self._name(value)} does not end where it began")
            elif value in self.graph.results:
                places = (self.host, self.device)
                if not any(place.use(value, end, last) for place in places):
                    self.found.append(f"the result {self._name(value)} is not there at the end")

    def _name(self, value: int) -> str:
        return self.graph.values[value].name


OffloadFinding = Finding[OffloadSchedule]
"""A planner's result. `solve_offload` simulates its schedule."""


def fits(task: Task, host: Host, found: OffloadSimulation) -> bool:
    """Whether a schedule is within the memory of both sides."""
    on_host = host.memory_bytes is None or found.host_peak_bytes <= host.memory_bytes
    return found.peak_bytes <= task.budget_bytes and on_host


def best_schedule(
    task: Task, host: Host, schedules: Sequence[OffloadSchedule]
) -> OffloadSchedule | None:
    """The fastest of those that fit; else that of least peak; None of none."""

    def rank(schedule: OffloadSchedule) -> tuple[bool, float, float]:
        found = simulate(task.graph, host, schedule)
        if fits(task, host, found):
            return False, found.seconds, found.peak_bytes
        return True, found.peak_bytes, found.seconds

    return min(schedules, key=rank, default=None)
