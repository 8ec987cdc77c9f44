"""Compute seconds of a unit on one device: a roofline over its fused kernel.

seconds = launch + max(work / rate, bytes read and written / memory bandwidth)

- If the mesh has a profile table, recorded seconds replace the roofline
  (`kiwi.problem.recorded_seconds`).
- A copy between host and device memory takes its bytes divided by the bandwidth between them.
- A region that is planned as a whole takes the sum over its units, with a loop's body multiplied by
  its trip count (`kiwi.hlo.regions.units`).
- A unit in a loop's body takes its seconds once per iteration.
- If no kernel computes a matmul together with the elementwise operators behind it, these operators
  are a second kernel, which reads the result and writes it again. So is a library's addition that
  has to wait until partial sums are summed. Each operand that the library cannot read as it lies is
  transposed in one further kernel (`Kernel.transposed_operands`).
- If the compiler reduces rows in the kernel of their readers (`Kernel.rows`), the reduction takes
  one launch. If the reduction were free, plans would recompute its few bytes for the backward pass,
  and the barrier of that recomputation would turn the reduction into a kernel.
- A unit that each reader computes for itself (`Kernel.in_readers`) takes nothing: the readers count
  its bytes.
- A unit with several library calls takes a launch for each of them.
- In the kernel of an earlier unit (`Kernel.shared`), a reduction takes a launch and its traffic,
  and an elementwise operator takes its traffic only.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from math import prod

from kiwi.hlo.equation_kinds import LIBRARY_OPCODES
from kiwi.hlo.kernels import kernel_calls
from kiwi.hlo.large_operators import multiplies
from kiwi.hlo.loops import CARRY, CASE, EXITS, SLICE, STACK
from kiwi.hlo.program import Equation
from kiwi.hlo.regions.memory import peak_bytes, region_workspace_bytes
from kiwi.hlo.regions.units import units_of_region
from kiwi.hlo.regions.work import moved_bytes, trips
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.kernels.graph import KernelGraph
from kiwi.kernels.kernel import Kernel, MovedBeside, TransposedOperand
from kiwi.kernels.matrix_operands import CONVOLUTION
from kiwi.kernels.reductions import reduces
from kiwi.mesh import DeviceMesh, Hardware, Price, Provenance
from kiwi.problem.recorded_seconds import RecordedWork
from kiwi.targets.registry import TARGETS

_SLICES = frozenset({"dynamic_slice", "slice"})
_PARTIAL_READERS = _SLICES | {"gather"}
"""Operators that read at most as many bytes of their first operand as their result has."""


@dataclass(frozen=True)
class UnitWork:
    """The computation and memory traffic of a unit, unsharded.

    - `work[k]`: the seconds of the k-th equation at the device's rate, and the factors whose
      sharding divides these seconds.
    - `read_bytes[k]`: the bytes of the k-th read, as the value is stored. If the unit only slices
      the value, the bytes of the slices.
    - `read_once`: whether the unit touches at most as many bytes of each read as its result has.
    - `launch_seconds`: the time of one kernel launch.
    - `bytes_per_second`: the bandwidth of its traffic.
    - `recorded`: the unit's work according to the mesh's profile table; None without a table.
    - `workspace_bytes`: the memory that the unit needs beyond operands and results while it runs.
    - `trips`: how often the unit runs in a step; less than once in a branch.
    - `border`: the kind of loop border that the unit stands at, if any. The start or end value of
      an iteration lies in place. An iteration writes one element of a stack.
    - `stacked`: the number of elements of a stacked result; 1 for any other result.
    - `is_transfer`: whether the unit copies between host and device memory.
    - `reduced_for_readers`: the factors that the unit reduces in its readers' kernel; None if it
      has a kernel of its own.
    - `in_readers`: whether the unit's readers compute it.
    - `further_calls`: the number of its library calls after the first.
    - `at_hand[k]`: if the kernel of an earlier unit computes this unit, whether that kernel has the
      k-th read anyway. None for a unit with a kernel of its own.
    - `reduces`: whether the unit ends in a reduction.
    - `functions`: the part of `work` that a device's function units compute at the same time as
      the rest; empty on devices without such units.
    - `region`: the price of the region that the unit runs, if it runs one.
    - `beside`: the seconds of the traffic of its further kernels, and the factors that divide them.
    - `maps_apart`: whether the elementwise operators behind its matmul are a kernel of their own.
    - `adds_apart`: the factors whose sharding puts an addition into a kernel of its own, which
      waits for partial sums.
    - `transposed`: the reads, by number, that a kernel of its own transposes first.
    """

    work: tuple[tuple[float, frozenset[int]], ...]
    read_bytes: tuple[int, ...]
    read_once: bool
    launch_seconds: float
    bytes_per_second: float
    recorded: RecordedWork | None = None
    workspace_bytes: int = 0
    trips: float = 1
    border: str | None = None
    stacked: int = 1
    is_transfer: bool = False
    reduced_for_readers: frozenset[int] | None = None
    in_readers: bool = False
    further_calls: int = 0
    maps_apart: bool = False
    adds_apart: frozenset[int] = frozenset()
    transposed: tuple[tuple[int, TransposedOperand], ...] = ()
    at_hand: tuple[bool, ...] | None = None
    reduces: bool = False
    functions: tuple[tuple[float, frozenset[int]], ...] = ()
    beside: tuple[tuple[float, frozenset[int]], ...] = ()
    region: "RegionPrice | None" = None

    @classmethod
    def of(cls, kernels: KernelGraph, unit: Unit, mesh: DeviceMesh) -> "UnitWork":
        """Returns the work of `unit` on a device of `mesh`."""
        units, kernel, hardware = kernels.units, kernels[unit.index], mesh.hardware
        values = units.graph.program.values
        equation = units.graph.program.equations[unit.root]
        border, is_transfer = units.border(unit), equation.is_transfer
        is_region = units.graph.equations[unit.root].is_region
        seconds = (_seconds(units, index, hardware) for index in unit.equations)
        work = [*zip(seconds, unit.rule.operator_factors, strict=True)]
        is_apart = [place in kernel.functions_apart for place in range(len(work))]
        table = None if is_transfer else mesh.table
        bandwidth = hardware.sustained_memory_bytes_per_second
        return cls(
            work=tuple(part for part, apart in zip(work, is_apart, strict=True) if not apart),
            read_bytes=tuple(_read_bytes(kernels, unit, key) for key, _ in unit.rule.reads),
            read_once=bool(units.graph.opcodes[unit.root] & _PARTIAL_READERS),
            launch_seconds=hardware.kernel_launch_seconds,
            bytes_per_second=(
                hardware.host_bandwidth_bytes_per_second if is_transfer else bandwidth
            ),
            recorded=None if table is None else RecordedWork.of(units, unit, table),
            workspace_bytes=_workspace_bytes(equation, is_region),
            trips=units.trips(unit),
            border=border,
            stacked=values[unit.outputs[0]].shape[0] if border == STACK else 1,
            is_transfer=is_transfer,
            reduced_for_readers=None if kernel.rows is None else kernel.rows.factors,
            in_readers=kernel.in_readers,
            further_calls=_further_calls(units, unit, hardware),
            maps_apart=kernel.maps_apart,
            adds_apart=kernel.adds_apart,
            transposed=kernel.transposed_operands,
            at_hand=_at_hand(kernel),
            reduces=reduces(units, unit),
            functions=tuple(compress(work, is_apart)),
            beside=tuple(
                (moved.bytes / bandwidth, _factors(unit, moved))
                for moved in (*kernel.moved_beside, *_moved_in_kernels(units, unit))
            ),
            region=region_price(kernels, equation, mesh) if is_region else None,
        )

    def price(
        self, shards: Mapping[int, int], read_bytes: Sequence[int], result_bytes: int
    ) -> Price:
        """The seconds of all runs in a step on one device, and their weakest provenance.

        - `shards`: the number of pieces of each sharded factor.
        - `read_bytes`: the local bytes of each read.
        - `result_bytes`: the local bytes of all results together.
        """
        if self.in_readers or self.border in EXITS | {CARRY, CASE}:
            return Price(0.0, Provenance.ANALYTIC)
        if self._is_in_kernel_of_readers(shards):
            return Price(self.trips * self.launch_seconds, Provenance.ANALYTIC)
        result_bytes //= self.stacked
        read = read_bytes
        if self.read_once or self.border == SLICE:
            read = [min(operand_bytes, result_bytes) for operand_bytes in read]
        moved_bytes = result_bytes if self.is_transfer else sum(read) + result_bytes
        if self.border == STACK:  # XLA fills it with zeros before the loop begins.
            moved_bytes += result_bytes
        apart_bytes, kernels = self._apart(shards, read_bytes, result_bytes)
        if self.at_hand is not None:
            moved_bytes -= sum(compress(read, self.at_hand))
            seconds = moved_bytes / self.bytes_per_second
            seconds += self.launch_seconds if self.reduces else 0.0
            once = Price(seconds, Provenance.ANALYTIC)
        elif self.region is not None:
            work_seconds = _local_seconds(self.work, shards)
            once = Price(self.region.seconds + work_seconds, self.region.provenance)
        elif self.recorded is not None:
            once = self.recorded.price(shards, moved_bytes + apart_bytes)
        else:
            work = (_local_seconds(part, shards) for part in (self.work, self.functions))
            seconds = max(*work, moved_bytes / self.bytes_per_second)
            seconds += self.launch_seconds + apart_bytes / self.bytes_per_second
            once = Price(seconds, Provenance.ANALYTIC)
        if self.recorded is None:
            kernels += self.further_calls  # Recorded calls contain their launches.
        seconds = once.seconds + kernels * self.launch_seconds
        if self.at_hand is None:
            seconds += _local_seconds(self.beside, shards) + len(self.beside) * self.launch_seconds
        return Price(self.trips * seconds, once.provenance)

    def share_without_beside(self, result_bytes: int) -> float:
        """The fraction of the unit's seconds that its own kernel takes, without the traffic of
        further kernels; 1 if there are none."""
        if not self.beside or self.at_hand is not None:
            return 1.0
        alone = replace(self, beside=())
        own_price, full_price = (
            work.price({}, self.read_bytes, result_bytes) for work in (alone, self)
        )
        return own_price.seconds / full_price.seconds

    def least_seconds(self, devices: int) -> float:
        """The seconds of computation on one device if `devices` devices share the work evenly,
        without traffic and launches. The matmuls of a region are not divided."""
        shared_seconds = sum(seconds for seconds, _ in self.work) / devices
        region_seconds = 0.0 if self.region is None else self.region.multiplying_seconds
        return self.trips * (shared_seconds + region_seconds)

    def apart_seconds(
        self, shards: Mapping[int, int], read_bytes: Sequence[int], result_bytes: int
    ) -> float:
        """The extra seconds if the unit gets a kernel of its own instead of a place in the kernel
        of its readers or of an earlier unit; 0 if it has a kernel of its own anyway. Parameters: as
        in `price`."""
        if self.at_hand is None and not self._is_in_kernel_of_readers(shards):
            return 0.0
        alone = replace(self, reduced_for_readers=None, at_hand=None)
        shared, separate = (work.price(shards, read_bytes, result_bytes) for work in (self, alone))
        return max(0.0, separate.seconds - shared.seconds)

    def again_seconds(
        self, once: Price, shards: Mapping[int, int], read_bytes: Sequence[int], result_bytes: int
    ) -> float:
        """The seconds of a second run. The transposed operands of the first run are still there.
        `once` is the result of `price`; the other parameters are as in `price`."""
        if not any(operand.is_transposed(shards) for _, operand in self.transposed):
            return once.seconds
        return replace(self, transposed=()).price(shards, read_bytes, result_bytes).seconds

    def _apart(
        self, shards: Mapping[int, int], read_bytes: Sequence[int], result_bytes: int
    ) -> tuple[int, int]:
        """Returns the bytes that kernels beside the library's read and write, and the number of
        these kernels."""
        moved = [read_bytes[k] for k, operand in self.transposed if operand.is_transposed(shards)]
        if self.maps_apart or any(shards.get(factor, 1) > 1 for factor in self.adds_apart):
            moved.append(result_bytes)
        return 2 * sum(moved), len(moved)

    def _is_in_kernel_of_readers(self, shards: Mapping[int, int]) -> bool:
        factors = self.reduced_for_readers
        return factors is not None and all(shards.get(factor, 1) == 1 for factor in factors)


def _further_calls(units: UnitGraph, unit: Unit, hardware: Hardware) -> int:
    """Returns the number of library calls after a unit's first one, each a kernel of its own."""
    if hardware.traits.has_function_units:
        return 0  # Matmuls that are added are one kernel.
    calls = (units.graph.opcodes[k] & LIBRARY_OPCODES for k in unit.equations)
    return max(0, sum(map(bool, calls)) - 1)


def _workspace_bytes(equation: Equation, is_region: bool) -> int:
    """Returns the bytes that an equation's function holds beyond its operands and results."""
    if is_region:
        return region_workspace_bytes(equation.jaxpr_eqn)
    return 0 if equation.kernel is None else peak_bytes(equation.kernel_jaxpr)


def _moved_in_kernels(units: UnitGraph, unit: Unit) -> Iterator[MovedBeside]:
    """Yields the traffic of a function with a sharding rule, before and after the library kernels
    that it calls. A function without such calls is priced as one kernel."""
    for place, index in enumerate(unit.equations):
        equation = units.graph.program.equations[index]
        if equation.kernel is not None and kernel_calls(equation.kernel_jaxpr):
            moved = moved_bytes(equation.kernel_jaxpr)
            yield from (MovedBeside(place, moved),) * bool(moved)


def _factors(unit: Unit, moved: MovedBeside) -> frozenset[int]:
    """Returns the factors whose sharding divides the traffic of a kernel beside the unit's own."""
    return unit.rule.operator_factors[moved.place] if moved.factors is None else moved.factors


def _at_hand(kernel: Kernel) -> tuple[bool, ...] | None:
    """Returns, for each read, whether the earlier kernel that computes the unit has the value
    anyway; None if the unit has a kernel of its own."""
    if kernel.shared is None:
        return None
    return tuple(key in kernel.shared.values for key, _ in kernel.unit.rule.reads)


@dataclass(frozen=True)
class RegionPrice:
    """The price of one run of a region on one device.

    - `seconds`: all seconds except collectives.
    - `multiplying_seconds`: the seconds of its matmuls, convolutions and library kernels.
    - `kernel_seconds`: the seconds of its library kernels. `kernel_runs`: how often they run.
    - `provenance`: the weakest provenance among its parts.
    """

    seconds: float = 0.0
    multiplying_seconds: float = 0.0
    kernel_seconds: float = 0.0
    kernel_runs: float = 0.0
    provenance: Provenance = Provenance.ANALYTIC

    def times(self, trips: float) -> "RegionPrice":
        """The price of `trips` runs."""
        return RegionPrice(
            trips * self.seconds,
            trips * self.multiplying_seconds,
            trips * self.kernel_seconds,
            trips * self.kernel_runs,
            self.provenance,
        )


def region_price(kernels: KernelGraph, equation: Equation, mesh: DeviceMesh) -> RegionPrice:
    """Returns the price of an equation's region. A conditional has the price of its costliest
    branch."""
    parts = units_of_region(equation.jaxpr_eqn, kernels.facts.fusion)
    prices = [_program_price(units, mesh, kernels.facts.target) for units in parts]
    runs = trips(equation.jaxpr_eqn)
    if equation.name == "cond":
        return max(prices, key=lambda price: price.seconds).times(runs)
    return _sum(prices).times(runs)


@functools.lru_cache(maxsize=64)
def _program_price(units: UnitGraph, mesh: DeviceMesh, target: str) -> RegionPrice:
    """Returns the price of a program's units, run one after another on one device, without
    collectives."""
    kernels = TARGETS[target].kernels(units, mesh.hardware)
    equations, prices = units.graph.program.equations, []
    for unit in units.units:
        if equations[unit.root].communicates:
            continue
        work = UnitWork.of(kernels, unit, mesh)
        result_bytes = sum(units.graph.program.values[value].size_bytes for value in unit.outputs)
        price = work.price({}, work.read_bytes, result_bytes)
        if work.region is not None:
            inside = work.region.times(work.trips)
            prices.append(replace(inside, seconds=price.seconds, provenance=price.provenance))
            continue
        calls = sum(equations[k].kernel_calls for k in unit.equations)
        is_large = any(multiplies(units.graph, k) for k in unit.equations)
        prices.append(
            RegionPrice(
                price.seconds,
                price.seconds if is_large else 0.0,
                work.share_without_beside(result_bytes) * price.seconds if calls else 0.0,
                work.trips * calls,
                price.provenance,
            )
        )
    return _sum(prices)


def _sum(prices: Sequence[RegionPrice]) -> RegionPrice:
    provenances = (price.provenance for price in prices)
    return RegionPrice(
        sum(price.seconds for price in prices),
        sum(price.multiplying_seconds for price in prices),
        sum(price.kernel_seconds for price in prices),
        sum(price.kernel_runs for price in prices),
        max(provenances, key=list(Provenance).index, default=Provenance.ANALYTIC),
    )


def _local_seconds(own: Sequence[tuple[float, frozenset[int]]], shards: Mapping[int, int]) -> float:
    return sum(
        seconds / prod(shards.get(factor, 1) for factor in factors) for seconds, factors in own
    )


def _read_bytes(kernels: KernelGraph, unit: Unit, value: int) -> int:
    """Returns the bytes of one of a unit's reads of a value, as the value is stored."""
    sliced_bytes = _sliced_bytes(kernels.units, unit, value)
    itemsize = kernels.units.graph.program.values[value].itemsize
    return sliced_bytes * kernels.storage.itemsize(value) // itemsize


def _sliced_bytes(units: UnitGraph, unit: Unit, value: int) -> int:
    program = units.graph.program
    readers = [
        equation
        for equation in map(program.equations.__getitem__, unit.equations)
        if value in equation.reads
    ]
    size_bytes = program.values[value].size_bytes
    if not all(
        units.graph.opcodes[equation.index] & _SLICES and equation.inputs[0] == value
        for equation in readers
    ):
        return size_bytes
    read_bytes = sum(
        program.values[output].size_bytes for equation in readers for output in equation.outputs
    )
    return min(size_bytes, read_bytes // [key for key, _ in unit.rule.reads].count(value))


def _seconds(units: UnitGraph, equation: int, hardware: Hardware) -> float:
    graph, program = units.graph, units.graph.program
    flops, operator = graph.equations[equation].flops, program.equations[equation]
    if not flops or graph.equations[equation].is_region:
        return 0.0
    is_matmul = multiplies(graph, equation)
    tensors = (*operator.reads, *operator.outputs) if is_matmul else operator.outputs
    dtype = str(program.values[tensors[0]].dtype) if tensors else "float32"
    if operator.is_library_kernel:
        return flops / hardware.kernel_flops_per_second(dtype)
    if operator.name == CONVOLUTION:
        return flops / hardware.convolution_flops_per_second(dtype)
    if is_matmul:
        return flops / hardware.matmul_flops_per_second(dtype)
    return flops / hardware.peak_flops_per_second(dtype, matmul=False)
