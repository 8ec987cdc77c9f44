"""Seconds that a unit computes on one device: a roofline over its fused kernel.

seconds = launch + max(work / rate, bytes read and written / memory bandwidth)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from kiwi.hlo.fusion import LIBRARY_OPCODES, opcodes
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.mesh import Hardware

_PARTIAL_READERS = frozenset({"gather", "dynamic_slice", "slice"})
"""Operators that read no more of their first operand than they yield."""


@dataclass(frozen=True)
class UnitWork:
    """What a unit computes and moves, unsharded.

    - `seconds_of_equation[k]`: work of the k-th equation over the device's rate.
    - `factors_of_equation[k]`: factors whose sharding divides it.
    - `read_bytes[k]`: bytes of the k-th read.
    - `read_once`: only as many bytes of a read as the result has are touched.
    """

    seconds_of_equation: tuple[float, ...]
    factors_of_equation: tuple[frozenset[int], ...]
    read_bytes: tuple[int, ...]
    read_once: bool
    launch_seconds: float
    bytes_per_second: float

    @classmethod
    def of(cls, units: UnitGraph, unit: Unit, hardware: Hardware) -> "UnitWork":
        """The work of `unit` on `hardware`."""
        graph = units.graph
        values = graph.program.values
        return cls(
            tuple(_seconds(units, index, hardware) for index in unit.equations),
            unit.rule.operator_factors,
            tuple(values[key].size_bytes for key, _ in unit.rule.reads),
            bool(opcodes(graph, unit.root) & _PARTIAL_READERS),
            hardware.kernel_launch_seconds,
            hardware.sustained_memory_bytes_per_second,
        )

    def seconds(
        self, shards: Mapping[int, int], read_shards: Sequence[int], result_bytes: int
    ) -> float:
        """Seconds on one device.

        **Arguments:**

        - `shards`: into how many pieces each sharded factor is cut.
        - `read_shards`: into how many pieces each read is cut.
        - `result_bytes`: local bytes written.
        """
        work = sum(
            seconds / prod(shards.get(f, 1) for f in factors)
            for seconds, factors in zip(
                self.seconds_of_equation, self.factors_of_equation, strict=True
            )
        )
        read = [b // n for b, n in zip(self.read_bytes, read_shards, strict=True)]
        if self.read_once:
            read = [min(b, result_bytes) for b in read]
        moved = (sum(read) + result_bytes) / self.bytes_per_second
        return self.launch_seconds + max(work, moved)


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
