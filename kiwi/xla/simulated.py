"""The time of a compiled program, simulated from its schedule and the prices of a mesh.

The device runs the schedule in order. A kernel is priced like a unit of a plan
(`kiwi.problem.costs`): the launch, plus the larger of the time to compute and the time to move its
bytes.

A transfer begins at its start instruction, as soon as the links of its axes are free, and continues
while the device computes. At its done instruction the device waits for the rest of the transfer.
Hidden communication still costs a share of its time, `Hardware.interference`. If that is None, the
device cannot compute and communicate at once, and waits for each transfer at its start.

Copies to the host and copies from the host each have a separate link. The copies under way share
their link equally, so that a small copy does not wait for large ones.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kiwi.mesh import DeviceMesh, Hardware, collective
from kiwi.xla.read.schedule import HOST, Schedule, ScheduledWork, Transfer
from kiwi.xla.read.work import Work


@dataclass(frozen=True)
class AxisSeconds:
    """The time of all communication along the same mesh axes in one step.

    - `axes`: the names of the axes; None for groups of devices that follow no axes, empty for
      copies between host and device.
    - `seconds`: the time of the transfers.
    - `exposed_seconds`: the time that they delay the device, by waiting or by interference.
    """

    axes: tuple[str, ...] | None
    seconds: float
    exposed_seconds: float


@dataclass(frozen=True)
class UnitSeconds:
    """The seconds that one unit takes in a step.

    - `compute`: the time of its kernels.
    - `communication`: the time of its transfers if none of it is hidden.
    """

    compute: float = 0.0
    communication: float = 0.0


@dataclass(frozen=True)
class SimulatedTime:
    """The simulated time of one step of a compiled program.

    - `step_seconds`: the whole step: kernels, waiting, and the cost of hidden communication.
    - `compute_seconds`: the time of all kernels.
    - `communication`: the communication by axes, largest first.
    - `unpriced_kernels`: the number of library kernels of unknown work. They are priced by their
      bytes alone.
    - `by_unit`: the result of `seconds_by_unit`. It is not written to files.
    """

    step_seconds: float
    compute_seconds: float
    communication: tuple[AxisSeconds, ...]
    unpriced_kernels: int = 0
    by_unit: Mapping[int, UnitSeconds] = field(default_factory=dict, hash=False, repr=False)

    @property
    def exposed_seconds(self) -> float:
        """The time that communication delays the device."""
        return sum(row.exposed_seconds for row in self.communication)


def simulated(
    schedule: Schedule,
    mesh: DeviceMesh,
    kernel_seconds: Mapping[int, float] | None = None,
    unit_runs: Mapping[int, float] | None = None,
) -> SimulatedTime:
    """Returns the simulated time of a schedule on a mesh.

    - `kernel_seconds`: by unit, the time of one run of each of its library kernels.
    - `unit_runs`: by unit, the planned number of runs in a step. A loop with an unknown trip count
      runs as often as the units in its body.
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
    """Returns the time that a schedule spends on each unit; parameters as of `simulated`.

    A fused kernel counts for the unit in its metadata. Kernels without a known unit count for -1.
    """
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
    """Returns how often the bodies of `step` run in each run of `step`, which itself runs `times`
    times."""
    if step.is_counted:
        return step.trips
    units = (inner.unit for body in step.bodies for inner in schedule.computations[body])
    return max(1.0, max((unit_runs.get(unit, 0.0) for unit in units), default=0.0) / times)


@dataclass(frozen=True)
class _Flying:
    """A transfer under way.

    - `end`: the time at which it ends. For a copy to or from the host, the end if it were alone.
    - `seconds`: its duration without other traffic.
    """

    transfer: Transfer
    end: float
    seconds: float


class _SharedLink:
    """A link that all copies under way share equally. The seconds of a copy are its duration if it
    had the link for itself."""

    def __init__(self) -> None:
        self._left: dict[str, float] = {}
        self._now = 0.0

    def start(self, key: str, seconds: float, now: float) -> None:
        self._advance(now)
        self._left[key] = seconds

    def end(self, key: str, now: float) -> float:
        """Returns the time at which a copy ends if no other copy starts before."""
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
    """The state of the simulation.

    - `now`: the time since the start of the step.
    - `computed`: the seconds of all kernels so far.
    - `unpriced`: the number of library kernels of unknown work so far.
    - `communicated`, `exposed`: by axes, the seconds of transfers, and of the delay that they
      cause.

    Private fields: when each axis becomes free, by direction (`_taken`); the transfers under way,
    by key (`_flying`); the links to the host, by direction (`_host`).
    """

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
        """Simulates one run of a computation. Totals of seconds count this run `times` times."""
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
        """Occupies the links of a transfer's axes, and returns the time at which it ends. A
        transfer with a direction occupies the links of this direction only."""
        axes = self.mesh.axis_names if transfer.axes is None else transfer.axes
        directions = (transfer.direction,) if transfer.direction else (1, -1)
        links = [(axis, direction) for axis in axes for direction in directions]
        end = max([self.now, *(self._taken[link] for link in links)]) + seconds
        self._taken.update(dict.fromkeys(links, end))
        return end

    def _await(self, key: str, times: float) -> None:
        """Waits for all transfers under way with this key, and charges their interference."""
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
        """Returns the share of a transfer's hidden time that it costs the device."""
        hardware = self.mesh.hardware
        is_copy = transfer.kind == HOST
        return hardware.host_interference if is_copy else hardware.interference or 0.0


def _transfer_seconds(transfer: Transfer, mesh: DeviceMesh) -> float:
    """Returns the duration of a transfer without other traffic on its links."""
    if transfer.kind == HOST:
        return transfer.bytes / mesh.hardware.host_bandwidth_bytes_per_second
    names = mesh.axis_names
    axes = range(len(names)) if transfer.axes is None else map(names.index, transfer.axes)
    return collective(transfer.kind, mesh, tuple(axes), transfer.bytes).seconds


def _taken_share(transfer: Transfer) -> float:
    """Returns the share of the links that a transfer uses: half for a permutation in one direction
    along mesh axes, else 1. A copy to or from the host has a link for each direction."""
    return 0.5 if transfer.direction and transfer.axes else 1.0


def work_seconds(work: Work, hardware: Hardware) -> float:
    """Returns the seconds of one run of a kernel on a device: its launch, plus the roofline of its
    work.

    Matmuls and functions overlap on hardware with separate function units; elsewhere their times
    add up.
    """
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
