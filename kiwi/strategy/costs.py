"""Seconds that a unit computes on one device: a roofline over its fused kernel.

seconds = launch + max(work / rate, bytes read and written / memory bandwidth)

Where the mesh has a profile table, a matmul or convolution takes what was recorded of it, see
`kiwi.mesh.profile_table`; what is fused with it adds the larger of its own work and of the bytes
that the unit moves beyond the recorded call.

A unit in the body of a loop takes its seconds once per iteration.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from kiwi.hlo.fusion import LIBRARY_OPCODES, opcodes
from kiwi.hlo.loops import CARRY, RESULT, SLICE, STACK
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.mesh import DeviceMesh, Hardware, Price, ProfileTable, Provenance
from kiwi.strategy.library import LibraryCall, library_calls

_PARTIAL_READERS = frozenset({"gather", "dynamic_slice", "slice"})
"""Operators that read no more of their first operand than they yield."""


@dataclass(frozen=True)
class UnitWork:
    """What a unit computes and moves, unsharded.

    - `seconds_of_equation[k]`: work of the k-th equation over the device's rate.
    - `factors_of_equation[k]`: factors whose sharding divides it.
    - `read_bytes[k]`: bytes of the k-th read.
    - `read_once`: only as many bytes of a read as the result has are touched.
    - `calls[k]`: the k-th equation if it is looked up in `table`.
    - `trips`: how often the unit runs in a step.
    - `border`: the border of a loop that it stands at, if any. What an iteration starts from or
      ends with lies in place; of what is stacked an iteration writes one element.
    - `stacked`: how many elements a stacked result has, 1 if it is none.
    """

    seconds_of_equation: tuple[float, ...]
    factors_of_equation: tuple[frozenset[int], ...]
    read_bytes: tuple[int, ...]
    read_once: bool
    launch_seconds: float
    bytes_per_second: float
    calls: tuple[LibraryCall | None, ...] = ()
    table: ProfileTable | None = field(default=None, compare=False, repr=False)
    trips: int = 1
    border: str | None = None
    stacked: int = 1

    @classmethod
    def of(cls, units: UnitGraph, unit: Unit, mesh: DeviceMesh) -> "UnitWork":
        """The work of `unit` on a device of `mesh`."""
        hardware, table = mesh.hardware, mesh.table
        graph = units.graph
        values = graph.program.values
        return cls(
            tuple(_seconds(units, index, hardware) for index in unit.equations),
            unit.rule.operator_factors,
            tuple(values[key].size_bytes for key, _ in unit.rule.reads),
            bool(opcodes(graph, unit.root) & _PARTIAL_READERS),
            hardware.kernel_launch_seconds,
            hardware.sustained_memory_bytes_per_second,
            library_calls(units, unit) if table is not None and table.operators else (),
            table,
            units.trips(unit),
            units.border(unit),
            _stacked(units, unit),
        )

    def price(
        self, shards: Mapping[int, int], read_shards: Sequence[int], result_bytes: int
    ) -> Price:
        """Seconds on one device, and the weakest provenance of what they are made of.

        **Arguments:**

        - `shards`: into how many pieces each sharded factor is cut.
        - `read_shards`: into how many pieces each read is cut.
        - `result_bytes`: local bytes of the results.
        """
        if self.border in (CARRY, RESULT):
            return Price(0.0, Provenance.ANALYTIC)
        once = self._once(shards, read_shards, result_bytes // self.stacked)
        return Price(self.trips * once.seconds, once.provenance)

    def _once(
        self, shards: Mapping[int, int], read_shards: Sequence[int], result_bytes: int
    ) -> Price:
        """The price of one computation that writes `result_bytes`."""
        read = [b // n for b, n in zip(self.read_bytes, read_shards, strict=True)]
        if self.read_once or self.border == SLICE:
            read = [min(b, result_bytes) for b in read]
        moved_bytes = sum(read) + result_bytes
        if any(self.calls):
            return self._recorded(shards, moved_bytes)
        work = self._work(shards, range(len(self.seconds_of_equation)))
        moved = moved_bytes / self.bytes_per_second
        return Price(self.launch_seconds + max(work, moved), self._by_bytes)

    @property
    def _by_bytes(self) -> Provenance:
        """Of fused elementwise work: the bandwidth was measured, or is the catalogue's."""
        measured = self.table is not None and not self.table.hardware.analytic
        return Provenance.EXTRAPOLATED if measured else Provenance.ANALYTIC

    def _work(self, shards: Mapping[int, int], positions: Iterable[int]) -> float:
        return sum(
            self.seconds_of_equation[k]
            / prod(shards.get(f, 1) for f in self.factors_of_equation[k])
            for k in positions
        )

    def _recorded(self, shards: Mapping[int, int], moved_bytes: int) -> Price:
        """Library calls by table, and what is fused with them."""
        assert self.table is not None
        prices, call_bytes = [], 0
        for call in self.calls:
            if call is not None:
                size, flops = call.local_bytes(shards), call.local_flops(shards)
                roofline = self.table.roofline(call.dtype, flops, size)
                known = (call.opcode, call.variant, call.dtype, call.local_shapes(shards))
                prices.append(self.table.operator(*known, roofline))
                call_bytes += size
        rest = [k for k, call in enumerate(self.calls) if call is None]
        beyond = max(0, moved_bytes - call_bytes) / self.bytes_per_second
        seconds = sum(p.seconds for p in prices) + max(self._work(shards, rest), beyond)
        order = list(Provenance)
        return Price(seconds, max((p.provenance for p in prices), key=order.index))


def _stacked(units: UnitGraph, unit: Unit) -> int:
    if units.border(unit) != STACK:
        return 1
    return units.graph.program.values[unit.outputs[0]].shape[0]


def _seconds(units: UnitGraph, equation: int, hardware: Hardware) -> float:
    graph = units.graph
    info = graph.equations[equation]
    if not info.flops:
        return 0.0
    outputs = graph.program.equations[equation].outputs
    dtype = str(graph.program.values[outputs[0]].dtype) if outputs else "float32"
    if opcodes(graph, equation) & LIBRARY_OPCODES:
        inputs = graph.program.equations[equation].reads
        dtype = str(graph.program.values[inputs[0]].dtype) if inputs else dtype
        return info.flops / hardware.matmul_flops_per_second(dtype)
    return info.flops / hardware.peak_flops_per_second(dtype, matmul=False)
