"""Seconds that a unit computes on one device, by a profile table.

The recorded seconds of its calls (matmuls, convolutions, reductions, scatters), plus its memory
traffic, plus what its elementwise functions add to the traffic.

An operator fused with a reduction runs in its loop, which takes longer by the bytes that it reads.
The bytes of other calls are no traffic of their own. A unit without calls is one kernel, whose
launch counts as well; recorded calls contain theirs.

If kernels are bound by their bytes (`BackendTraits.is_bound_by_bytes`), functions are computed
during the traffic, the longer of the two counts, and reductions are traffic.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from kiwi.hlo.units import Unit, UnitGraph
from kiwi.mesh import Price, ProfileTable, Provenance
from kiwi.problem.library_calls import LibraryCall, library_calls


@dataclass(frozen=True)
class _Function:
    """An elementwise equation, unsharded: `factors` divide its `size`, in elements."""

    opcode: str
    dtype: str
    size: int
    factors: frozenset[int]


@dataclass(frozen=True)
class RecordedWork:
    """A unit's computation as `table` knows it: functions, and calls that the table has entries
    for."""

    calls: tuple[LibraryCall, ...]
    functions: tuple[_Function, ...]
    table: ProfileTable = field(compare=False, repr=False)

    @classmethod
    def of(cls, units: UnitGraph, unit: Unit, table: ProfileTable) -> "RecordedWork":
        """The work of `unit`."""
        calls, functions = [], []
        for position, call in enumerate(library_calls(units, unit, table.hardware)):
            if call is not None and (call.is_matmul or table.has(*call.known)):
                calls.append(call)
            else:
                functions += _functions(units, unit, position)
        return cls(tuple(calls), tuple(functions), table)

    def price(self, shards: Mapping[int, int], moved_bytes: int) -> Price:
        """Seconds, and the weakest provenance among their parts.

        - `shards`: into how many pieces each sharded factor is cut.
        - `moved_bytes`: the bytes that the unit reads and writes on one device.
        """
        calls, called_bytes = [], 0
        for call in self.calls:
            size, flops = call.local_bytes(shards), call.local_flops(shards)
            roofline = self.table.roofline(call.dtype, flops, size)
            calls.append(self.table.operator(*call.known, call.local_shapes(shards), roofline))
            called_bytes += size
        beyond = max(0, moved_bytes - called_bytes)
        if any("reduce" in call.hlo for call in self.calls):
            longer = (called_bytes + beyond) / called_bytes
            calls, beyond = [Price(longer * p.seconds, p.provenance) for p in calls], 0
        kernels = [*calls, *self._traffic(beyond)]
        functions = [self._function(f, shards) for f in self.functions]
        seconds, functions_seconds = (sum(p.seconds for p in g) for g in (kernels, functions))
        if self.table.hardware.traits.is_bound_by_bytes:
            seconds = max(seconds, functions_seconds)
        else:
            seconds += functions_seconds
        launch = 0.0 if calls else self.table.hardware.kernel_launch_seconds
        prices = kernels + functions
        weakest = max((p.provenance for p in prices), key=list(Provenance).index)
        return Price(launch + seconds, weakest)

    def _traffic(self, moved_bytes: int) -> list[Price]:
        """The traffic that is not the calls' own."""
        if not moved_bytes and self.calls:
            return []
        whole = self.table.traffic(moved_bytes)
        seconds = max(0.0, whole.seconds - self.table.hardware.kernel_launch_seconds)
        return [Price(seconds, whole.provenance)]

    def _function(self, found: _Function, shards: Mapping[int, int]) -> Price:
        size = max(1, found.size // prod(shards.get(f, 1) for f in found.factors))
        price = self.table.elementwise(found.opcode, found.dtype, size)
        if price is not None:
            return price
        rate = self.table.hardware.peak_flops_per_second(found.dtype, matmul=False)
        return Price(size / rate, Provenance.ANALYTIC)


def _functions(units: UnitGraph, unit: Unit, position: int) -> list[_Function]:
    """The elementwise function of an equation; None if it only moves elements."""
    graph = units.graph
    equation = graph.program.equations[unit.equations[position]]
    flops = graph.equations[equation.index].flops
    if not flops or not equation.outputs:
        return []
    dtype = str(graph.program.values[equation.outputs[0]].dtype)
    factors = unit.rule.operator_factors[position]
    return [_Function(equation.name, dtype, int(flops), factors)]
