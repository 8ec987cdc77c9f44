"""The time of a compiled program: its schedule, run with the prices of a mesh.

The device runs the schedule in order. A kernel is priced like a unit of a plan
(`kiwi.problem.costs`): its launch, and the larger of computing and moving bytes. Communication
begins where it is started, as soon as the links of its axes are free, and goes on while the device
computes. Where it is awaited, the device waits for the rest. Hidden communication costs a share of
its time, `Hardware.interference`. On devices that cannot do both at once, starts wait. Copies to
the host and back each have a link of their own, shared equally by the copies under way: a small
copy need not wait for large ones.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kiwi.mesh import DeviceMesh, Hardware, collective
from kiwi.xla.read.schedule import HOST, Schedule, ScheduledWork, Transfer
from kiwi.xla.read.work import Work


@dataclass(frozen=True)
class AxisSeconds:
    """Communication along the same mesh axes (names; None if it follows no axes, empty for copies
    between host and device): its time, and the part that the device waits for."""

    axes: tuple[str, ...] | None
    seconds: float
    exposed_seconds: float


@dataclass(frozen=True)
class UnitSeconds:
    """The time of one unit's kernels in a step, and of its transfers if nothing hides them."""

    compute: float = 0.0
    communication: float = 0.0


@dataclass(frozen=True)
class SimulatedTime:
    """One step of a compiled program.

    - `compute_seconds`: of all kernels.
    - `communication`: by axes, largest first.
    - `step_seconds`: kernels, waiting, and the cost of hidden communication.
    - `unpriced_kernels`: calls of library kernels of unknown work, which count by their bytes.
    - `by_unit`: see `seconds_by_unit`; empty in files.
    """

    step_seconds: float
    compute_seconds: float
    communication: tuple[AxisSeconds, ...]
    unpriced_kernels: int = 0
    by_unit: Mapping[int, UnitSeconds] = field(default_factory=dict, hash=False, repr=False)

    @property
    def exposed_seconds(self) -> float:
        """The time that the device waits for communication."""
        return sum(row.exposed_seconds for row in self.communication)


def simulated(
    schedule: Schedule,
    mesh: DeviceMesh,
    kernel_seconds: Mapping[int, float] | None = None,
    unit_runs: Mapping[int, float] | None = None,
) -> SimulatedTime:
    """Runs a schedule.

    - `kernel_seconds`: by unit, the time of one run of each of its library kernels.
    - `unit_runs`: by unit, how often it is planned to run in a step. A loop of unknown trips runs
      as often as the units in its body.
    """
    clock = _Clock(schedule, mesh, kernel_seconds or {}, unit_runs or {})
    clock.run(len(schedule.computations) - 1, 1.0)
    rows = (
        AxisSeconds(axes, seconds, clock.exposed.get(axes, 0.0))
        for axes, seconds in clock.communicated.items()
    )
    return SimulatedTime(
        clock.now,
        clock.computed,
        tuple(sorted(rows, key=lambda row: (-row.seconds, row.axes or ()))),
        clock.unpriced,
        seconds_by_unit(schedule, mesh, kernel_seconds, unit_runs),
    )


def seconds_by_unit(
    schedule: Schedule,
    mesh: DeviceMesh,
    kernel_seconds: Mapping[int, float] | None = None,
    unit_runs: Mapping[int, float] | None = None,
) -> Mapping[int, UnitSeconds]:
    """The time that a schedule spends on each unit, -1 for unknown units; arguments as of
    `simulated`. A fused kernel counts for the unit in its metadata."""
    known_seconds = kernel_seconds or {}
    by_unit: dict[int, UnitSeconds] = {}

    def run(computation: int, times: float) -> None:
        for step in schedule.computations[computation]:
            computing = 0.0 if step.work.is_scalar else work_seconds(step.work, mesh.hardware)
            if step.work.kernels:
                computing = max(computing, known_seconds.get(step.unit, 0.0))
            moved = (*step.starts, *step.carries)
            moving = sum(_transfer_seconds(transfer, mesh) for transfer in moved)
            before = by_unit.get(step.unit, UnitSeconds())
            by_unit[step.unit] = UnitSeconds(
                before.compute + times * computing, before.communication + times * moving
            )
            trips = _trips(schedule, step, times, unit_runs or {})
            for body in step.bodies:
                run(body, times * trips)

    run(len(schedule.computations) - 1, 1.0)
    return by_unit


def _trips(
    schedule: Schedule, step: ScheduledWork, times: float, unit_runs: Mapping[int, float]
) -> float:
    """How often the bodies of a step run each time, if the step itself runs `times` times."""
    if step.is_counted:
        return step.trips
    units = (inner.unit for body in step.bodies for inner in schedule.computations[body])
    return max(1.0, max((unit_runs.get(unit, 0.0) for unit in units), default=0.0) / times)


@dataclass(frozen=True)
class _Flying:
    """A transfer under way: when it ends, and its whole time."""

    transfer: Transfer
    end: float
    seconds: float


class _SharedLink:
    """A link shared equally by all copies under way. Seconds are those of a copy that is alone."""

    def __init__(self) -> None:
        self._left: dict[str, float] = {}
        self._now = 0.0

    def start(self, key: str, seconds: float, now: float) -> None:
        self._advance(now)
        self._left[key] = seconds

    def end(self, key: str, now: float) -> float:
        """When a copy ends if no other one starts meanwhile."""
        self._advance(now)
        own_seconds = self._left.get(key, 0.0)
        return now + sum(min(left_seconds, own_seconds) for left_seconds in self._left.values())

    def _advance(self, now: float) -> None:
        passed, self._now = now - self._now, now
        while self._left and passed > 0:
            share = min(*self._left.values(), passed / len(self._left))
            passed -= share * len(self._left)
            self._left = {
                key: left_seconds - share
                for key, left_seconds in self._left.items()
                if left_seconds > share
            }


@dataclass
class _Clock:
    """The device's time while it runs a schedule, and until when each axis is in use, by
    direction."""

    schedule: Schedule
    mesh: DeviceMesh
    kernel_seconds: Mapping[int, float]
    unit_runs: Mapping[int, float]
    now: float = 0.0
    computed: float = 0.0
    unpriced: int = 0
    communicated: dict[tuple[str, ...] | None, float] = field(
        default_factory=lambda: defaultdict(float)
    )
    exposed: dict[tuple[str, ...] | None, float] = field(default_factory=lambda: defaultdict(float))

    def __post_init__(self) -> None:
        self._taken: dict[tuple[str, int], float] = defaultdict(float)
        self._flying: dict[str, list[_Flying]] = defaultdict(list)
        self._host: dict[int, _SharedLink] = defaultdict(_SharedLink)

    def run(self, computation: int, times: float) -> None:
        """Runs a computation once, for so many runs in the step."""
        for step in self.schedule.computations[computation]:
            for transfer in step.starts:
                self._start(transfer, times)
            self._compute(step, times)
            trips = _trips(self.schedule, step, times, self.unit_runs)
            for body in step.bodies:
                self._loop(body, trips, times)
            for transfer in step.carries:
                if not self._flying.get(transfer.key):
                    self._start(transfer, times)
                    self._await(transfer.key, times)
            for key in step.awaits:
                self._await(key, times)

    def _loop(self, body: int, trips: float, times: float) -> None:
        started = self.now
        self.run(body, times * trips)
        self.now = started + trips * (self.now - started)

    def _compute(self, step: ScheduledWork, times: float) -> None:
        if step.work.is_scalar:
            return
        seconds = work_seconds(step.work, self.mesh.hardware)
        if step.work.kernels and step.unit in self.kernel_seconds:
            seconds = max(seconds, self.kernel_seconds[step.unit])
        elif step.work.kernels:
            self.unpriced += step.work.kernels
        self.now += seconds
        self.computed += times * seconds

    def _start(self, transfer: Transfer, times: float) -> None:
        seconds = _transfer_seconds(transfer, self.mesh)
        if transfer.kind == HOST:
            self._host[transfer.direction].start(transfer.key, seconds, self.now)
            end = self.now + seconds
        else:
            end = self._end_along_axes(transfer, seconds)
        self._flying[transfer.key].append(_Flying(transfer, end, seconds))
        self.communicated[transfer.axes] += times * _taken_share(transfer) * seconds
        if self.mesh.hardware.interference is None and transfer.kind != HOST:
            self._await(transfer.key, times)

    def _end_along_axes(self, transfer: Transfer, seconds: float) -> float:
        axes = self.mesh.axis_names if transfer.axes is None else transfer.axes
        directions = (transfer.direction,) if transfer.direction else (1, -1)
        links = [(axis, direction) for axis in axes for direction in directions]
        end = max([self.now, *(self._taken[link] for link in links)]) + seconds
        self._taken.update(dict.fromkeys(links, end))
        return end

    def _await(self, key: str, times: float) -> None:
        for flying in self._flying.pop(key, ()):
            end, transfer = flying.end, flying.transfer
            if transfer.kind == HOST:
                end = self._host[transfer.direction].end(key, self.now)
            waited = max(0.0, end - self.now)
            hidden = _taken_share(transfer) * max(0.0, flying.seconds - waited)
            waited += self._interference(transfer) * hidden
            self.now += waited
            self.exposed[transfer.axes] += times * waited

    def _interference(self, transfer: Transfer) -> float:
        hardware = self.mesh.hardware
        is_copy = transfer.kind == HOST
        return hardware.host_interference if is_copy else hardware.interference or 0.0


def _transfer_seconds(transfer: Transfer, mesh: DeviceMesh) -> float:
    """The time of a transfer that has its links for itself."""
    if transfer.kind == HOST:
        return transfer.bytes / mesh.hardware.host_bandwidth_bytes_per_second
    names = mesh.axis_names
    axes = range(len(names)) if transfer.axes is None else map(names.index, transfer.axes)
    return collective(transfer.kind, mesh, tuple(axes), transfer.bytes).seconds


def _taken_share(transfer: Transfer) -> float:
    """The share of the links in use. A permutation goes one way, and so does a copy, on a link of
    its own."""
    return 0.5 if transfer.direction and transfer.axes else 1.0


def work_seconds(work: Work, hardware: Hardware) -> float:
    """One run of a kernel on a device: its launch, and a roofline of its work."""
    computing = _rated(work.matmul_flops, hardware.matmul_flops_per_second)
    computing += _rated(work.convolution_flops, hardware.convolution_flops_per_second)
    mapping = _rated(
        work.operations, lambda dtype: hardware.peak_flops_per_second(dtype, matmul=False)
    )
    computing = (
        max(computing, mapping) if hardware.traits.has_function_units else computing + mapping
    )
    moving = work.moved_bytes / hardware.sustained_memory_bytes_per_second
    return hardware.kernel_launch_seconds + max(computing, moving)


def _rated(work: Mapping[str, float], rate: Callable[[str], float]) -> float:
    return sum(amount / rate(dtype) for dtype, amount in work.items())
