"""The only account of a schedule with copies to the host: its validity, its memory, its time.

Every number that Kiwi reports about an `OffloadSchedule` comes from this module.

**Memory.** A computation or a transfer makes a copy of a value in one of the two memories. The copy
holds memory from the first step of its making to the last step of its last use before another copy
of the value is made in the same memory. The source of a transfer stays until the transfer ends.
Results stay until the end, on the host if they are there then. Inputs of the graph begin and end in
the same memory. Inputs at home on the host hold memory there throughout. A step holds all copies
that it touches, and the operator's temporary memory.

**Time.** Steps follow one another. In a step the device computes, both directions of the link copy
and the host updates, all at once. Transfers may be cut at the borders of steps. The time of a step
is the largest of the four. The distribution of a transfer over its steps is free, and the time is
the least over all distributions, as follows. On a channel, jobs (first step, last step, seconds)
can be done if and only if no run of steps is shorter than the jobs that lie within it (preemptive
earliest deadline first). These are covering constraints over intervals of steps. They are met at
least cost by lengthening each step, from the first to the last, by the largest lack of time of the
runs that end with it.

Any execution with one stream per channel therefore has a schedule of the same length: the work of a
stream between the starts of two operators belongs to the step of the first.
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
"""The first step, the last step, and the seconds of a transfer or an update on the host."""


@dataclass(frozen=True)
class OffloadSimulation:
    """The memory and the time of a valid schedule.

    - `peak_bytes`, `host_peak_bytes`: the largest memory on the device and on the host.
    - `compute_seconds`: the time of the operators on the device.
    - `step_seconds`: the time of each step, waiting included.
    - `memory_bytes`, `host_memory_bytes`: the memory during each step.
    """

    peak_bytes: int
    host_peak_bytes: int
    compute_seconds: float
    step_seconds: tuple[float, ...]
    memory_bytes: tuple[int, ...]
    host_memory_bytes: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """The time of the whole training step."""
        return sum(self.step_seconds)


def violations(graph: RematGraph, host: Host, schedule: OffloadSchedule) -> list[str]:
    """Returns the reasons for which `schedule` cannot be executed; empty if it can."""
    return _Walk(graph, host, schedule).found


def simulate(graph: RematGraph, host: Host, schedule: OffloadSchedule) -> OffloadSimulation:
    """Returns the peaks and the time of `schedule`.

    Raises `kiwi.errors.InvalidProblemError` if the schedule cannot be executed.
    """
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
    away = [copy for copy in walk.host.copies if copy.value not in schedule.host_inputs]
    held = held_bytes(graph, map(_Copy.live_range, away), count)
    on_host = tuple(home_bytes + held_on_host for held_on_host in held)
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
    """Returns a valid schedule without the transfers whose copies nothing uses."""
    while True:
        unused = _Walk(graph, host, schedule).unused
        if not unused:
            return schedule
        schedule = replace(
            schedule,
            outward=tuple(
                transfer for transfer in schedule.outward if (transfer, False) not in unused
            ),
            inward=tuple(
                transfer for transfer in schedule.inward if (transfer, True) not in unused
            ),
        )


def channels(graph: RematGraph, host: Host, schedule: OffloadSchedule) -> list[list[Job]]:
    """Returns the jobs of the link outward, of the link inward, and of the host's processor."""
    sizes = [value.size_bytes for value in graph.values]
    seconds = {update.operator: update.host_seconds for update in host.updates}
    return [
        [
            (transfer.first, transfer.last, host.outward_seconds(sizes[transfer.value]))
            for transfer in schedule.outward
        ],
        [
            (transfer.first, transfer.last, host.inward_seconds(sizes[transfer.value]))
            for transfer in schedule.inward
        ],
        [
            (transfer.first, transfer.last, seconds[transfer.operator])
            for transfer in schedule.host_runs
        ],
    ]


def step_seconds(compute: Sequence[float], jobs: Iterable[Sequence[Job]]) -> tuple[float, ...]:
    """Returns the least lengths of steps, given the device's time in each and jobs by channel."""
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
    """One copy of a value.

    - `first`: the first step of its making.
    - `last`: the last step of its last use so far.
    - `ready`: the first step that may use it.
    """

    value: int
    first: int
    last: int
    ready: int

    def live_range(self) -> LiveRange:
        """Returns the interval in which the copy holds memory."""
        return LiveRange(self.value, self.first, self.last)


@dataclass
class _Memory:
    """The copies of values in one memory, and the latest copy of each value."""

    copies: list[_Copy] = field(default_factory=list)
    latest: dict[int, _Copy] = field(default_factory=dict)

    def make(self, value: int, first: int, last: int) -> _Copy:
        copy = self.latest[value] = _Copy(value, first, last, last + 1)
        self.copies.append(copy)
        return copy

    def use(self, value: int, first: int, last: int) -> bool:
        """Returns whether step `first` may use the value; if so, its copy stays until `last`."""
        copy = self.latest.get(value)
        if copy is None or copy.ready > first:
            return False
        copy.last = max(copy.last, last)
        return True


class _Walk:
    """A walk over a schedule, step by step: the copies that exist, and the errors (`found`)."""

    def __init__(self, graph: RematGraph, host: Host, schedule: OffloadSchedule) -> None:
        host.check(graph)
        self.graph, self.updates = graph, {update.operator: update for update in host.updates}
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
        """The transfers, each with whether it is inward, whose copies have no later use."""
        return {
            (transfer, inward)
            for transfer, inward, copy in self._moved
            if copy.last == transfer.last
        }

    def _check_intervals(self) -> None:
        schedule, graph = self.schedule, self.graph
        for job in (*schedule.outward, *schedule.inward, *schedule.host_runs):
            if not 0 <= job.first <= job.last < len(schedule.steps):
                self.found.append(f"{job} does not lie within the steps")
        if any(k != IDLE and not 0 <= k < len(graph.operators) for k in schedule.steps):
            self.found.append("a step computes an unknown operator")
        if any(run.operator not in self.updates for run in schedule.host_runs):
            self.found.append("the host runs what is no update")

    def _begin(self) -> None:
        for value, producer in enumerate(self.graph.producer):
            if producer < 0:
                memory = self.host if value in self.schedule.host_inputs else self.device
                memory.make(value, 0, 0).ready = 0

    def _take(self, step: int) -> None:
        """Updates the copies for a step: first the copies that it uses, then the copies that it
        makes."""
        schedule, operator = self.schedule, self.schedule.steps[step]
        outward = [transfer for transfer in schedule.outward if transfer.first == step]
        inward = [transfer for transfer in schedule.inward if transfer.first == step]
        host_runs = [run for run in schedule.host_runs if run.first == step]
        for transfer in outward:
            self._use(self.device, transfer.value, step, transfer.last, "copies out")
        for transfer in inward:
            self._use(self.host, transfer.value, step, transfer.last, "fetches")
        for run in host_runs:
            for value in self.graph.operators[run.operator].inputs:
                self._use(self.host, value, step, run.last, "updates on the host with")
        for value in () if operator == IDLE else self.graph.operators[operator].inputs:
            self._use(self.device, value, step, step, "reads")
            if value in self._replaced:
                self.found.append(f"step {step} reads {self._name(value)} after its update")
        for transfer in outward:
            self._moved.append(
                (transfer, False, self.host.make(transfer.value, step, transfer.last))
            )
        for transfer in inward:
            self._moved.append(
                (transfer, True, self.device.make(transfer.value, step, transfer.last))
            )
        for run in host_runs:
            self._run(run.operator, step, run.last, self.host, self.device)
        if operator != IDLE:
            self._run(operator, step, step, self.device, self.host)

    def _use(self, memory: _Memory, value: int, first: int, last: int, verb: str) -> None:
        if not memory.use(value, first, last):
            self.found.append(f"step {first} {verb} {self._name(value)}, which is not there")

    def _run(self, operator: int, first: int, last: int, here: _Memory, there: _Memory) -> None:
        """Makes the outputs of an operator, and replaces the values that it overwrites.

        Other copies of an overwritten value are no longer usable.
        """
        update, name = self.updates.get(operator), self.graph.operators[operator].name
        self._runs[operator] += 1
        again = self.graph.operators[operator].recomputable and update is None
        if self._runs[operator] > 1 and not again:
            self.found.append(f"step {first} computes {name} again, which may run only once")
        for value in self.graph.operators[operator].outputs:
            here.make(value, first, last)
        for value in update.overwrites if update is not None else ():
            moving = (*self.schedule.outward, *self.schedule.inward)
            if any(
                transfer.value == value and transfer.first <= last and first <= transfer.last
                for transfer in moving
            ):
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
"""The result of a planner that offloads. `solve_offload` simulates its schedule."""


def fits(task: Task, host: Host, found: OffloadSimulation) -> bool:
    """Returns whether a simulated schedule is within the memory of the device and of the host."""
    on_host = host.memory_bytes is None or found.host_peak_bytes <= host.memory_bytes
    return found.peak_bytes <= task.budget_bytes and on_host


def best_schedule(
    task: Task, host: Host, schedules: Sequence[OffloadSchedule]
) -> OffloadSchedule | None:
    """Returns the fastest schedule that fits, else one of least peak; None without any."""

    def rank(schedule: OffloadSchedule) -> tuple[bool, float, float]:
        simulated = simulate(task.graph, host, schedule)
        if fits(task, host, simulated):
            return False, simulated.seconds, simulated.peak_bytes
        return True, simulated.peak_bytes, simulated.seconds

    return min(schedules, key=rank, default=None)
