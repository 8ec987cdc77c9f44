"""Times of functions that a compiler states, without any device.

Many functions are compiled together in one program, one after the other, each in its own scope. All
their operands and results are in device memory.

The stated times are scaled to known figures of the device:

- Matmuls: the catalogue's `matmul_efficiency` is the part of the peak rate that the matmuls of
  published training steps reach. One factor scales the matmuls of a layer of Llama 2 7B (Touvron et
  al., 2023; width 4,096, hidden width 11,008), so that together they take the time at this rate.
- Memory traffic: the catalogue's `bandwidth_efficiency` defines a second factor in the same way.

A scaled time of a matmul, another operator or memory traffic is never shorter than the time at the
peak rates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax

from kiwi.errors import CompileCheckError, CompilerUnavailableError
from kiwi.mesh.device_mesh import DeviceMesh
from kiwi.mesh.hardware import Hardware
from kiwi.messages import topics
from kiwi.profiling.measure import Kind, Point, TimedFunction, Timing, on_each_device, spec_of
from kiwi.profiling.operator_points import STREAM_BYTES, matmul, stream_point
from kiwi.xla.compiler import Compiler
from kiwi.xla.compilers import of_platform
from kiwi.xla.gpu.target_config import target_config
from kiwi.xla.read.stated_times import timed_scope
from kiwi.xla.step import Step

MATMUL_SCALE, MEMORY_SCALE = "matmul", "memory"
"""The names of the two factors in `CompilerBench.scales`."""

_MOST_FUNCTIONS = 64
"""The most functions in one program. Further functions go to the next program."""

_PART_OF_MEMORY = 0.4
"""The part of the device's memory that the functions of one program may hold. Further functions go
to the next program. The rest is left for copies that the compiler makes."""

_LEAST_COLLECTIVE_BYTES = 2**18
"""The smallest buffer of a collective whose stated time is used. In XLA:GPU's tables smaller
buffers take longer than larger ones."""

_TOKENS = 8192
"""The number of tokens for which the matmuls of a layer are stated."""

_LAYER = tuple((_TOKENS, *sizes) for sizes in [(4096, 4096)] * 4 + [(11008, 4096)] * 2)
_LAYER_MATMULS = (*_LAYER, (_TOKENS, 4096, 11008))
"""The sizes (m, n, k) of the matmuls in the forward pass of a layer."""

_MATMUL_DTYPE = "bfloat16"
_LARGE_STREAM = stream_point(STREAM_BYTES[-1])


@dataclass(frozen=True, eq=False)
class CompilerBench:
    """A compiler that states times for its hardware.

    - `hardware`: a device of the catalogue.
    - `mesh`: the mesh that collectives run over.
    - `known_scales`: the value of `scales` if it is known already; None to compute it.

    **Raises:** `CompilerUnavailableError` if the hardware's compiler states no times or is not
    installed.
    """

    hardware: Hardware
    mesh: DeviceMesh
    known_scales: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        self._compiler.check_available(self.hardware)
        if not self._compiler.stated_kinds:
            raise CompilerUnavailableError(
                f"The compiler for {self.hardware.name!r} states no times.",
                topic=topics.NO_STATED_TIMES,
                cause="XLA:TPU and XLA:GPU have a cost model of kernels, XLA:CPU has none.",
            )

    @cached_property
    def scales(self) -> Mapping[str, float]:
        """The factors that scale the compiler's times: for matmuls (`MATMUL_SCALE`) and for other
        kernels (`MEMORY_SCALE`).

        **Raises:** `CompilerUnavailableError` if the compiler does not state the times that the
        factors follow from; `CompileCheckError` if the compilation fails.
        """
        if self.known_scales is not None:
            return self.known_scales
        products = [matmul(sizes, _MATMUL_DTYPE) for sizes in _LAYER_MATMULS]
        (traffic,) = _LARGE_STREAM.functions
        *stated, moved_seconds = self._stated([*products, traffic], self._alone)
        matmul_seconds = [seconds for seconds in stated if seconds is not None]
        if len(matmul_seconds) < len(stated) or moved_seconds is None:
            raise CompilerUnavailableError(
                f"{self.version} states no times of matmuls on {self.hardware.name!r}.",
                topic=topics.NO_STATED_TIMES,
                cause="Another version of the compiler may write them otherwise.",
                suggestion="The versions of jax and its plugins that Kiwi is tested with.",
            )
        flops = sum(2.0 * m * n * k for m, n, k in _LAYER_MATMULS)
        moving_seconds = STREAM_BYTES[-1] / self.hardware.sustained_memory_bytes_per_second
        return {
            MATMUL_SCALE: flops
            / self.hardware.matmul_flops_per_second(_MATMUL_DTYPE)
            / sum(matmul_seconds),
            MEMORY_SCALE: moving_seconds / moved_seconds,
        }

    @property
    def stated_hardware(self) -> Hardware:
        """The hardware of a table of stated times: the device, under a name and a description that
        say that its compiler states the times."""
        return replace(
            self.hardware,
            name=f"{self.hardware.name}-by-compiler",
            description=f"{self.hardware.description}; kernels as {self.version} states them",
            source=f"{self.version}; else as {self.hardware.name}: {self.hardware.source}",
            analytic=False,
            target_config=target_config(self.hardware) if self.hardware.backend == "gpu" else None,
        )

    @property
    def version(self) -> str:
        """The name and version of the distribution that contains the compiler."""
        return self._compiler.version

    @cached_property
    def _compiler(self) -> Compiler:
        return of_platform(self.hardware.backend)

    @cached_property
    def _alone(self) -> DeviceMesh:
        """The smallest mesh for functions of one device: the devices of one chip."""
        wiring = self.hardware.interconnect
        return DeviceMesh.create((wiring.devices_per_chip if wiring else 1,), self.hardware)

    def states(self, point: Point) -> bool:
        """Returns whether the compiler states a reliable time for a point."""
        if point.kind is Kind.COLLECTIVE and (
            # The compiler's tables cover only the links inside a node.
            self.mesh.size > (self.hardware.devices_per_node or 1)
            or point.entry.bytes < _LEAST_COLLECTIVE_BYTES
        ):
            return False
        return point.kind.value in self._compiler.stated_kinds

    def batches(self, points: Sequence[Point]) -> Iterator[list[Point]]:
        """Yields groups of points to compile together. The points of a group run on the same mesh,
        and fit into the device's memory and into `_MOST_FUNCTIONS`."""
        for is_collective in (False, True):
            batch: list[Point] = []
            functions = held_bytes = 0
            for point in points:
                if (point.kind is Kind.COLLECTIVE) is not is_collective:
                    continue
                held_bytes += 2 * point.held_bytes
                functions += len(point.functions)
                limit = _PART_OF_MEMORY * self.hardware.memory_bytes
                if batch and (functions > _MOST_FUNCTIONS or held_bytes > limit):
                    yield batch
                    batch = []
                    functions, held_bytes = len(point.functions), 2 * point.held_bytes
                batch.append(point)
            if batch:
                yield batch

    def times(self, batch: Sequence[Point]) -> list[Timing | Exception]:
        """Returns, for each point of a batch, its time or the error that prevents one.

        If the batch does not compile, its halves are compiled separately.
        """
        mesh = self.mesh if batch[0].kind is Kind.COLLECTIVE else self._alone
        try:
            stated = self._stated(
                [function for point in batch for function in point.functions], mesh
            )
        except CompileCheckError as error:
            if len(batch) == 1:
                return [error]
            half = len(batch) // 2
            return [*self.times(batch[:half]), *self.times(batch[half:])]
        remaining = iter(stated)
        return [self._time(point, [next(remaining) for _ in point.functions]) for point in batch]

    def _time(self, point: Point, stated: Sequence[float | None]) -> Timing | Exception:
        timings = [
            Timing(self._scale(point) * seconds, 0.0) for seconds in stated if seconds is not None
        ]
        if len(timings) < len(stated):
            return ValueError("the compiler does not state what it takes")
        timing = point.combined(*timings)
        if point.kind in (Kind.ELEMENTWISE, Kind.COLLECTIVE):
            return timing
        entry = point.entry
        flops = getattr(entry, "flops", 0.0) if point.kind is Kind.MATMUL else 0.0
        peak = self.hardware.peak_flops_per_second(entry.dtype)
        least = max(flops / peak, entry.bytes / self.hardware.memory_bandwidth_bytes_per_second)
        return Timing(self.hardware.kernel_launch_seconds + max(timing.seconds, least), 0.0)

    def _scale(self, point: Point) -> float:
        if point.kind is Kind.COLLECTIVE:
            return 1.0  # The compiler's tables of collectives are measured.
        return self.scales[MATMUL_SCALE if point.kind is Kind.MATMUL else MEMORY_SCALE]

    def _stated(self, functions: Sequence[TimedFunction], mesh: DeviceMesh) -> list[float | None]:
        """Returns the seconds of each function as the compiler states them, unscaled; None for a
        function without a stated time."""
        seconds = self._compiler.stated_seconds(_program(functions, mesh))
        return [seconds.get(number) for number in range(len(functions))]


def _program(functions: Sequence[TimedFunction], mesh: DeviceMesh) -> Step:
    """Returns a step that runs all functions one after the other, each on all devices at once."""
    abstract = mesh.abstract_mesh()
    locals_ = [operand for function in functions for operand in function.operands]
    specs = [spec_of(abstract, local) for local in locals_]

    def run(*buffers: Any) -> list[Any]:
        remaining_buffers, results, last = iter(buffers), [], ()
        for number, function in enumerate(functions):
            operands = [next(remaining_buffers) for _ in function.operands]
            # Without the barrier the compiler may fuse two functions into one kernel.
            operands, _ = jax.lax.optimization_barrier((operands, last))
            with jax.named_scope(timed_scope(number)):
                last = on_each_device(abstract, function)(*operands)
            results.append(last)
        return results

    return Step(
        run,
        [_whole(local, mesh.size) for local in locals_],
        mesh,
        specs,
        [spec_of(abstract, function.found) for function in functions],
        (),
    )


def _whole(local: Any, devices: int) -> Any:
    """Returns the global array whose parts of the first dimension have the shape of `local`.
    Scalars are replicated."""
    shape = (local.shape[0] * devices, *local.shape[1:]) if local.shape else ()
    return jax.ShapeDtypeStruct(shape, local.dtype)
