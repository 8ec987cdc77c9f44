"""Records a profile table: what planning a function needs to know of the attached devices.

Measured are all matmuls and convolutions in the local shapes that any sharding strategy gives
them, each once; memory bandwidth and the overhead of a launch; and collectives over every set of
mesh axes on a ladder of sizes. The file is saved after every few measurements, and a recording
that is run again takes up what it has.
"""

import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from kiwi.errors import ProfileFileError
from kiwi.hlo.units import UnitGraph
from kiwi.mesh import DeviceMesh, Hardware, ProfileTable
from kiwi.mesh.collectives import RECORDED_DTYPE
from kiwi.mesh.hardware import CATALOGUE
from kiwi.mesh.measure import (
    CollectivePoint,
    Timing,
    collective_points,
    collective_seconds,
    launch_seconds,
    matmul_flops_per_second,
    measure,
    memory_bytes_per_second,
)
from kiwi.mesh.profile_table import CollectiveEntry, Environment, OperatorEntry, Shapes
from kiwi.mesh.target_config import target_config
from kiwi.strategy.library import LibraryCall, library_calls
from kiwi.strategy.strategies import shards_of_strategies

COLLECTIVE_BYTES = tuple(2**k for k in range(10, 27, 4))
"""The ladder of sizes, from 1 KiB to 64 MiB."""

_SAVE_SECONDS = 5.0
_MATMUL_SIZE = {"cpu": 1024, "gpu": 8192}


@dataclass(frozen=True)
class Progress:
    """How far a recording is: `seconds_left` extrapolates what was measured so far."""

    done: int
    total: int
    seconds_left: float
    what: str


@dataclass(frozen=True, eq=False)
class _Operator:
    """A call of a function in the local shapes of some strategies."""

    call: LibraryCall
    equation: Any
    shapes: Shapes
    flops: float
    bytes: int

    @property
    def key(self) -> tuple[object, ...]:
        return self.call.opcode, self.call.variant, self.call.dtype, self.shapes

    @property
    def name(self) -> str:
        return f"{self.call.opcode} {self.call.dtype} {self.shapes}"


def record(
    units: UnitGraph,
    mesh_shape: Sequence[int],
    *,
    path: str | Path | None = None,
    repetitions: int = 9,
    collective_bytes: Sequence[int] = COLLECTIVE_BYTES,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> ProfileTable:
    """Measures what planning `units` on a mesh of `mesh_shape` needs; see `kiwi.record_profile`.

    **Raises:** `NotEnoughDevicesError`, `InvalidMeshError`; `ProfileFileError` if `path` holds
    something else than a recording on this device.
    """
    mesh = DeviceMesh.create(mesh_shape, CATALOGUE["cpu"])
    jax_mesh = mesh.jax_mesh()
    draft = _Draft(_begin(path, jax_mesh.devices.flat[0], repetitions), path)
    known = {(e.opcode, e.variant, e.dtype, e.shapes) for e in draft.table.operators}
    gathered = {(e.kind, e.devices, e.bytes) for e in draft.table.collectives}
    operators = [o for o in local_operators(units, mesh) if o.key not in known]
    points = [
        p
        for p in collective_points(mesh.shape, collective_bytes)
        if (p.kind, p.devices, p.bytes) not in gathered
    ]
    started, total = time.monotonic(), len(operators) + len(points)
    try:
        for done, item in enumerate([*operators, *points]):
            spent = time.monotonic() - started
            left = spent / done * (total - done) if done else float("nan")
            on_progress(Progress(done, total, left, _name(item)))
            draft.add(item, lambda item=item: _time(item, jax_mesh, repetitions))
    finally:
        draft.save()
    return draft.table


def local_operators(units: UnitGraph, mesh: DeviceMesh) -> list[_Operator]:
    """Every matmul and convolution in every local shape of its strategies, each once."""
    found: dict[tuple[object, ...], _Operator] = {}
    for unit in units.units:
        for position, call in enumerate(library_calls(units, unit)):
            if call is None:
                continue
            equation = units.graph.program.equations[unit.equations[position]].jaxpr_eqn
            for shards in shards_of_strategies(unit, mesh):
                item = _operator(call, equation, shards)
                found.setdefault(item.key, item)
    return list(found.values())


def _operator(call: LibraryCall, equation: Any, shards: Mapping[int, int]) -> _Operator:
    flops, size = call.local_flops(shards), call.local_bytes(shards)
    return _Operator(call, equation, call.local_shapes(shards), flops, size)


def _name(item: _Operator | CollectivePoint) -> str:
    if isinstance(item, _Operator):
        return item.name
    return f"{item.kind} of {item.bytes} bytes over {item.devices} devices"


def _time(item: _Operator | CollectivePoint, mesh: jax.sharding.Mesh, repetitions: int) -> Timing:
    if isinstance(item, CollectivePoint):
        return collective_seconds(mesh, item, repetitions)
    primitive, params = item.equation.primitive, item.equation.params
    run = jax.jit(lambda *operands: primitive.bind(*operands, **params))
    dtypes = [v.aval.dtype for v in item.equation.invars]
    device = mesh.devices.flat[0]
    operands = [
        jax.device_put(jnp.ones(shape, dtype), device)
        for shape, dtype in zip(item.shapes, dtypes, strict=True)
    ]
    return measure(lambda: run(*operands), repetitions)


def _check_fits(item: _Operator | CollectivePoint, hardware: Hardware) -> None:
    """Raises `MemoryError` for what a device cannot hold, before trying stalls the machine."""
    needed = 2 * item.bytes
    if needed > hardware.memory_bytes:
        raise MemoryError(f"{needed} bytes do not fit into {hardware.memory_bytes}")


class _Draft:
    """A table that grows, and its file."""

    def __init__(self, table: ProfileTable, path: str | Path | None) -> None:
        self.table = table
        self._path = path
        self._saved = time.monotonic()

    def add(self, item: _Operator | CollectivePoint, time_it: Callable[[], Timing]) -> None:
        """Measures one thing; what does not fit or does not compile is noted."""
        try:
            _check_fits(item, self.table.hardware)
            timing = time_it()
        except (RuntimeError, MemoryError, TypeError, ValueError) as error:
            first_line = (str(error).splitlines() or [type(error).__name__])[0]
            note = f"{_name(item)}: {first_line[:160]}"
            if note not in self.table.skipped:
                self.table = replace(self.table, skipped=(*self.table.skipped, note))
            return
        self.table = _with(self.table, item, timing)
        if time.monotonic() - self._saved > _SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Writes what there is so far."""
        if self._path is not None:
            self.table.save(self._path)
        self._saved = time.monotonic()


def _with(table: ProfileTable, item: _Operator | CollectivePoint, timing: Timing) -> ProfileTable:
    figures = (timing.seconds, timing.spread)
    if isinstance(item, CollectivePoint):
        entry = CollectiveEntry(item.kind, item.devices, RECORDED_DTYPE, item.bytes, *figures)
        return replace(table, collectives=(*table.collectives, entry))
    call = item.call
    known = (call.opcode, call.variant, call.dtype, item.shapes)
    entry = OperatorEntry(*known, item.flops, item.bytes, *figures)
    return replace(table, operators=(*table.operators, entry))


def _begin(path: str | Path | None, device: Any, repetitions: int) -> ProfileTable:
    """The file's table where there is one, or one without entries."""
    environment = _environment(device)
    if path is None or not Path(path).exists():
        return ProfileTable(_hardware(device, repetitions), environment=environment)
    found = ProfileTable.load(path)
    before = found.environment
    if before is None or replace(before, date="") != replace(environment, date=""):
        raise ProfileFileError(
            f"{path} was recorded elsewhere: {before}, and this is {environment}.",
            cause="Measurements of two machines or versions do not belong in one table.",
            suggestion="Another file.",
        )
    return found


def _environment(device: Any) -> Environment:
    # XLA's name of its platform carries the versions of CUDA and of the driver's interface.
    driver = " ".join(str(device.client.platform_version).split())
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Environment(str(device.device_kind), jax.__version__, driver, date)


def _hardware(device: Any, repetitions: int) -> Hardware:
    """The device by measurement; memory size, links and nodes as of the nearest known one."""
    platform = "cpu" if device.platform == "cpu" else "gpu"
    base = _nearest(str(device.device_kind), platform)
    memory = (device.memory_stats() or {}).get("bytes_limit", base.memory_bytes)
    rate = matmul_flops_per_second(device, "float32", _MATMUL_SIZE[platform], repetitions)
    # Efficiencies are contained in what is measured.
    return replace(
        base,
        name=f"recorded-{str(device.device_kind).lower().replace(' ', '-')}",
        description=f"measured {device.device_kind}; links by data sheet where not measured",
        flops_per_second=_rates(base, rate),
        memory_bandwidth_bytes_per_second=memory_bytes_per_second(device, repetitions),
        memory_bytes=int(memory),
        kernel_launch_seconds=launch_seconds(device, repetitions).seconds,
        matmul_efficiency=1.0,
        bandwidth_efficiency=1.0,
        source=f"measured; else as {base.name}: {base.source}",
        analytic=False,
        target_config=_described(base),
    )


def _rates(base: Hardware, float32_rate: float) -> dict[str, float]:
    """Rates of other dtypes, as the data sheet relates them to that of float32 matmuls."""
    scale = float32_rate / base.peak_flops_per_second("float32")
    return {dtype: rate * scale for dtype, rate in base.flops_per_second.items()}


def _nearest(kind: str, platform: str) -> Hardware:
    """The catalogue's entry of the same model; links are of use on any machine."""
    model = next((n for n in CATALOGUE if n.split("-")[0].upper() in kind.upper()), None)
    return CATALOGUE[model or ("cpu" if platform == "cpu" else "a100-sxm")]


def _described(base: Hardware) -> str | None:
    """How the nearest known device describes itself to XLA:GPU: jax does not ask attached ones."""
    return None if base.platform == "cpu" else target_config(base)
