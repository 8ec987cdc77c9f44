"""`kiwi.record_profile`: records a profile table for planning a function.

The times are measured on the attached devices, or stated by the compiler of a device that need not
be attached. The function is traced. Its operators and their sharding strategies determine which
operators are recorded, in which local shapes (`kiwi.profiling.operator_points`). The file is saved
every few seconds, and when the recording ends, even by an error.
"""

import datetime
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod
from pathlib import Path
from typing import Any

import jax
from jax import lax

from kiwi.api import PlannedFunction, jit
from kiwi.errors import InvalidArgumentError, ProfileFileError
from kiwi.mesh import collective_kinds as kinds
from kiwi.mesh.collectives import RECORDED_DTYPE
from kiwi.mesh.device_mesh import DeviceMesh
from kiwi.mesh.hardware import CATALOGUE, Hardware, hardware
from kiwi.mesh.profile_entries import CollectiveEntry, Environment
from kiwi.mesh.profile_table import ProfileTable
from kiwi.messages import topics
from kiwi.profiling.by_compiler import CompilerBench
from kiwi.profiling.measure import UNMEASURED, Bench, Kind, Point, TimedFunction, Timing
from kiwi.profiling.operator_points import (
    STREAM_BYTES,
    elementwise_points,
    matmul_flops_per_second,
    operator_points,
    stream_point,
)
from kiwi.xla.compilers import of_platform
from kiwi.xla.gpu.target_config import attached_target_config, target_config

_SAVE_SECONDS = 5.0
"""The interval after which a growing table is saved again."""

_MATMUL_SIZE, _MATMUL_SIZE_ON_CPUS = 8192, 1024
"""The rows of the square matrices from which the rate of matmuls is measured."""

_TPUS = {"TPU v5 lite": "v5e", "TPU v5": "v5p", "TPU v6 lite": "v6e"}
"""The catalogue's names of TPUs that jax names differently."""

COLLECTIVE_BYTES = tuple(2**k for k in range(10, 27, 4))
"""The sizes at which collectives are recorded, from 1 KiB to 64 MiB."""

_ITEM_BYTES = 4
"""The bytes of an element of `RECORDED_DTYPE`."""


@dataclass(frozen=True)
class Progress:
    """The progress of a recording.

    - `done`, `total`: the number of points that are recorded, and the number of all points.
    - `seconds_left`: extrapolated from the points so far; NaN before the first one.
    - `what`: the next point, as a text for people.
    """

    done: int
    total: int
    seconds_left: float
    what: str


def record_profile(
    fun: Callable[..., Any] | PlannedFunction,
    *args: Any,
    mesh_shape: Sequence[int],
    compiler: str | None = None,
    path: str | Path | None = None,
    repetitions: int = 9,
    on_progress: Callable[[Progress], None] = lambda _: None,
    **kwargs: Any,
) -> ProfileTable:
    """Records a profile table for planning `fun(*args, **kwargs)`.

    The table has the times of the function's matmuls, convolutions and reductions in the local
    shapes of all sharding strategies, of its elementwise functions, of memory traffic and launches,
    and of collectives along each set of mesh axes. They are measured on the attached devices. All
    devices of the mesh run each program at once. `kiwi.plan(..., profile=table)` can use the table
    without these devices.

    - `args`, `kwargs`: arrays or `jax.ShapeDtypeStruct`s. `fun` is traced but not run.
    - `mesh_shape`: the shape of the mesh, with at most as many devices as are attached. (1,)
      records no collectives.
    - `compiler`: the name of a TPU or GPU of the catalogue. If it is given, nothing is measured and
      no device is needed: the table has the times that the device's compiler states for its
      kernels, if they are reliable (`kiwi.profiling.by_compiler`).
    - `path`: the file to which the table is saved while it grows. Entries of an existing file are
      not recorded again, so that an interrupted recording can be resumed.
    - `repetitions`: the number of timings of each program. The median is kept.
    - `on_progress`: called before each measurement.

    **Raises:** `NotEnoughDevicesError`, `InvalidMeshError`, `InvalidArgumentError`;
    `UnknownProfileError`, `CompilerUnavailableError` for a `compiler` that is not known, not
    installed or states no times; `ProfileFileError` if `path` cannot be written, or was recorded on
    other devices or by another jax or compiler; the errors of tracing.
    """
    planned = fun
    if not isinstance(fun, PlannedFunction):
        planned = jit(fun, mesh_shape=mesh_shape, verify=None)
    units = planned.traced(*args, **kwargs).units
    device = hardware(compiler) if compiler is not None else known_hardware(jax.devices()[0])
    mesh = DeviceMesh.create(mesh_shape, device)
    points = [*elementwise_points(units), *operator_points(units, mesh)]
    if compiler is not None:
        return state(points, mesh_shape, device, path=path, on_progress=on_progress)
    return record(points, mesh_shape, path=path, repetitions=repetitions, on_progress=on_progress)


def record(
    points: Sequence[Point],
    mesh_shape: Sequence[int],
    *,
    path: str | Path | None = None,
    repetitions: int = 9,
    collective_bytes: Sequence[int] = COLLECTIVE_BYTES,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> ProfileTable:
    """Measures `points`, memory traffic and collectives on the attached devices, and returns the
    table.

    - `collective_bytes`: the sizes at which collectives are measured.

    The other parameters and the errors are those of `record_profile`.
    """
    if repetitions < 1:
        raise InvalidArgumentError(
            f"{repetitions} repetitions measure nothing.",
            topic=topics.OUT_OF_RANGE,
            suggestion="At least one.",
        )
    mesh = DeviceMesh.create(mesh_shape, CATALOGUE["cpu"])
    jax_mesh = mesh.jax_mesh()
    compiler = of_platform(jax_mesh.devices.flat[0].platform)
    bench = Bench(jax_mesh, repetitions, compiler.run_options)
    everything = _with_traffic_and_collectives(points, mesh, collective_bytes)
    on_progress(Progress(0, len(everything), float("nan"), "launches, matmuls and memory"))
    environment = _environment(bench.mesh.devices.flat[0])

    def begun() -> ProfileTable:
        return ProfileTable(_hardware(bench), environment=environment, mesh_shape=mesh.shape)

    draft = _Draft(_begin(path, environment, mesh.shape, begun), path)
    missing = draft.missing(everything)
    clock = _Clock(len(missing), on_progress)
    with draft:
        for done, point in enumerate(missing):
            clock.tell(done, point.name)
            draft.measure(point, bench)
    return draft.table


def state(
    points: Sequence[Point],
    mesh_shape: Sequence[int],
    device: Hardware,
    *,
    path: str | Path | None = None,
    collective_bytes: Sequence[int] = COLLECTIVE_BYTES,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> ProfileTable:
    """Returns a table of the times that a device's compiler states for `points`, memory traffic and
    collectives.

    - `device`: a device of the catalogue.
    - `collective_bytes`: the sizes at which collectives are stated.

    The other parameters and the errors are those of `record_profile`.
    """
    mesh = DeviceMesh.create(mesh_shape, device)
    bench = CompilerBench(device, mesh)
    everything = _with_traffic_and_collectives(points, mesh, collective_bytes)
    stated = [point for point in everything if bench.states(point)]
    on_progress(Progress(0, len(stated), float("nan"), "matmuls and memory of a known size"))
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    environment = Environment(device.name, jax.__version__, "", today, bench.version)

    def begun() -> ProfileTable:
        return ProfileTable(
            bench.stated_hardware,
            environment=environment,
            mesh_shape=mesh.shape,
            scales=bench.scales,
        )

    draft = _Draft(_begin(path, environment, mesh.shape, begun), path)
    bench = replace(bench, known_scales=draft.table.scales)
    missing = draft.missing(stated)
    clock, done = _Clock(len(missing), on_progress), 0
    with draft:
        for batch in bench.batches(missing):
            clock.tell(done, f"{batch[0].name} and {len(batch) - 1} more")
            for point, timing in zip(batch, bench.times(batch), strict=True):
                draft.add(point, timing)
            done += len(batch)
    return draft.table


def _with_traffic_and_collectives(
    points: Sequence[Point], mesh: DeviceMesh, collective_bytes: Sequence[int]
) -> list[Point]:
    return [*map(stream_point, STREAM_BYTES), *points, *collective_points(mesh, collective_bytes)]


class _Clock:
    """Reports the progress of a recording to `on_progress`."""

    def __init__(self, total: int, on_progress: Callable[[Progress], None]) -> None:
        self._total, self._on_progress = total, on_progress
        self._started = time.monotonic()

    def tell(self, done: int, what: str) -> None:
        """Reports that `done` points are recorded, and that `what` is next."""
        spent = time.monotonic() - self._started
        seconds_left = spent / done * (self._total - done) if done else float("nan")
        self._on_progress(Progress(done, self._total, seconds_left, what))


class _Draft:
    """A growing table and its file. The file is saved at intervals, and when a `with` block
    ends."""

    def __init__(self, table: ProfileTable, path: str | Path | None) -> None:
        self.table = table
        self._path = path
        self._saved = time.monotonic()

    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        self.save()

    def missing(self, points: Sequence[Point]) -> list[Point]:
        """Returns the points that have no entry in the table."""
        recorded_keys = {entry.key for entry in (*self.table.operators, *self.table.collectives)}
        return [point for point in points if point.entry.key not in recorded_keys]

    def measure(self, point: Point, bench: Bench) -> None:
        """Measures one point. If the point does not fit into memory or does not compile, the table
        lists the reason instead (`ProfileTable.skipped`)."""
        try:
            # A program that exceeds the memory could stall the machine: it is refused beforehand.
            needed, available = 2 * point.held_bytes, self.table.hardware.memory_bytes
            if needed > available:
                raise MemoryError(f"{needed} bytes do not fit into {available}")
            self.add(point, point.time(bench))
        except (RuntimeError, MemoryError, TypeError, ValueError) as error:
            self.add(point, error)

    def add(self, point: Point, timing: Timing | Exception) -> None:
        """Adds the time of a point to the table, or the reason why there is none."""
        if isinstance(timing, Exception):
            first_line = (str(timing).splitlines() or [type(timing).__name__])[0]
            note = f"{point.name}: {first_line[:160]}"
            if note not in self.table.skipped:
                self.table = replace(self.table, skipped=(*self.table.skipped, note))
            return
        timed = replace(point.entry, seconds=timing.seconds, spread=timing.spread)
        self.table = self.table.with_entry(timed)
        if time.monotonic() - self._saved > _SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Saves the table as it is."""
        if self._path is not None:
            self.table.save(self._path)
        self._saved = time.monotonic()


def _begin(
    path: str | Path | None,
    environment: Environment,
    mesh_shape: tuple[int, ...],
    begun: Callable[[], ProfileTable],
) -> ProfileTable:
    """Returns the table of the file at `path` if there is one, else the empty table of `begun`.

    **Raises:** `ProfileFileError` if the file cannot be written, or was recorded on other devices,
    by other versions or for another mesh.
    """
    if path is None or not Path(path).exists():
        table = begun()
        if path is not None:
            # Fails at once if the file cannot be written, and not after all measurements.
            table.save(path)
        return table
    saved_table = ProfileTable.load(path)
    recorded = saved_table.environment
    if recorded is None or replace(recorded, date="") != replace(environment, date=""):
        raise ProfileFileError(
            f"{path} was recorded elsewhere: {recorded}, and this is {environment}.",
            topic=topics.OTHER_MACHINE,
            cause="Measurements of two machines or versions do not belong in one table.",
            suggestion="Another file.",
        )
    if saved_table.mesh_shape != mesh_shape:
        raise ProfileFileError(
            f"{path} was recorded on a mesh of shape {saved_table.mesh_shape}, not {mesh_shape}.",
            topic=topics.OTHER_MACHINE,
            cause="Devices that share a machine slow each other down: how many there are matters.",
            suggestion="Another file, or the same mesh.",
        )
    return saved_table


def _environment(device: Any) -> Environment:
    # XLA's version of the platform contains the versions of CUDA and of the driver's interface.
    driver = " ".join(str(device.client.platform_version).split())
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Environment(str(device.device_kind), jax.__version__, driver, date)


def _hardware(bench: Bench) -> Hardware:
    """Returns the hardware of a measured table: measured rates, memory and launch cost, with the
    links and nodes of the most similar device of the catalogue."""
    device = bench.mesh.devices.flat[0]
    base = known_hardware(device)
    size = _MATMUL_SIZE_ON_CPUS if bench.platform == "cpu" else _MATMUL_SIZE
    # The measured rate of float32 matmuls scales the data sheet's rates of all dtypes.
    rate = matmul_flops_per_second(bench, "float32", size)
    scale = rate / base.peak_flops_per_second("float32")
    moved_bytes = STREAM_BYTES[-1]
    # Measured rates contain the efficiencies already.
    return replace(
        base,
        name=f"recorded-{str(device.device_kind).lower().replace(' ', '-')}",
        description=f"measured {device.device_kind}; links by data sheet where not measured",
        flops_per_second={dtype: peak * scale for dtype, peak in base.flops_per_second.items()},
        memory_bandwidth_bytes_per_second=moved_bytes
        / stream_point(moved_bytes).time(bench).seconds,
        memory_bytes=_memory_bytes(bench, base),
        kernel_launch_seconds=bench.launch_seconds,
        matmul_efficiency=1.0,
        bandwidth_efficiency=1.0,
        source=f"measured; else as {base.name}: {base.source}",
        analytic=False,
        # The device's own description for XLA:GPU, or else that in the catalogue.
        target_config=None
        if base.backend != "gpu"
        else attached_target_config(device) or target_config(base),
    )


def _memory_bytes(bench: Bench, base: Hardware) -> int:
    """Returns the bytes of a device's memory that jax may use. Virtual devices share the memory of
    their machine equally."""
    device = bench.mesh.devices.flat[0]
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    if bench.platform != "cpu" or "SC_PHYS_PAGES" not in os.sysconf_names:
        return base.memory_bytes
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // bench.mesh.devices.size


def known_hardware(device: Any) -> Hardware:
    """Returns the catalogue's hardware for a `jax.Device`. For an unknown model it is another
    device of the same platform, whose links stand in."""
    kind = str(device.device_kind)
    model = next((name for name in CATALOGUE if name.split("-")[0].upper() in kind.upper()), None)
    fallbacks = {"cpu": "cpu", "tpu": "v5e"}
    return CATALOGUE[_TPUS.get(kind) or model or fallbacks.get(device.platform, "a100-sxm")]


def collective_points(
    mesh: DeviceMesh, sizes_bytes: Sequence[int] = COLLECTIVE_BYTES
) -> Iterator[Point]:
    """Yields the points of all kinds of collectives, along each set of mesh axes, at all sizes."""
    for count in range(1, len(mesh.nontrivial_axes) + 1):
        for axes in combinations(mesh.nontrivial_axes, count):
            devices = prod(mesh.shape[axis] for axis in axes)
            # Each device's part of a buffer must be a whole number of elements.
            part = devices * _ITEM_BYTES
            for kind in kinds.KINDS:
                for size in sizes_bytes:
                    yield _point(mesh, kind, axes, max(1, size // part) * part)


def _point(mesh: DeviceMesh, kind: str, axes: tuple[int, ...], size_bytes: int) -> Point:
    """Returns the point of a collective that runs in all groups of devices along `axes` at once."""
    devices = prod(mesh.shape[axis] for axis in axes)
    entry = CollectiveEntry(kind, devices, RECORDED_DTYPE, size_bytes, *UNMEASURED, axes)
    large = size_bytes // _ITEM_BYTES
    operand, result = (
        jax.ShapeDtypeStruct((large // devices if kind == smaller else large,), RECORDED_DTYPE)
        for smaller in (kinds.ALL_GATHER, kinds.REDUCE_SCATTER)
    )
    body = _body(kind, tuple(mesh.axis_names[axis] for axis in axes), devices)
    name = f"{kind} of {size_bytes} bytes along mesh axes {', '.join(map(str, axes))}"
    function = TimedFunction(body, [operand], result)
    return Point(entry, Kind.COLLECTIVE, name, size_bytes, (function,))


def _body(kind: str, names: tuple[str, ...], devices: int) -> Callable[[Any], Any]:
    """Returns the function that runs a collective along the mesh axes `names` inside of a
    `shard_map`."""
    ring = [(device, (device + 1) % devices) for device in range(devices)]
    bodies: dict[str, Callable[[Any], Any]] = {
        kinds.ALL_GATHER: lambda x: lax.all_gather(x, names, tiled=True),
        kinds.ALL_REDUCE: lambda x: lax.psum(x, names),
        kinds.REDUCE_SCATTER: lambda x: lax.psum_scatter(x, names, tiled=True),
        kinds.ALL_TO_ALL: lambda x: lax.all_to_all(x, names, 0, 0, tiled=True),
        kinds.COLLECTIVE_PERMUTE: lambda x: lax.ppermute(x, names, ring),
    }
    return bodies[kind]
