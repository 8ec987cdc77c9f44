"""Compute seconds of a unit on one device, from a profile table.

The price is the sum of three parts: the recorded seconds of the unit's calls (matmuls,
convolutions, reductions, scatters), the seconds of its other memory traffic, and the seconds of its
elementwise functions.

An operator that is fused with a reduction runs in the reduction's loop, which takes longer in
proportion to the bytes that the operator adds. The bytes of other calls are part of their recorded
seconds. A unit without calls is one kernel, and pays for its launch; recorded calls contain their
launches.

If kernels are bound by their bytes (`BackendTraits.is_bound_by_bytes`), functions are computed
during the traffic, and the longer of the two counts. Reductions then count as traffic.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from kiwi.hlo.units import Unit, UnitGraph
from kiwi.mesh import Price, ProfileTable, Provenance
from kiwi.problem.library_calls import LibraryCall, library_calls


@dataclass(frozen=True)
class _Function:
    """An elementwise equation, unsharded. `size` is in elements; sharding `factors` divides it."""

    opcode: str
    dtype: str
    size: int
    factors: frozenset[int]


@dataclass(frozen=True)
class RecordedWork:
    """A unit's computation according to `table`: its elementwise functions, and its calls that the
    table has entries for."""

    calls: tuple[LibraryCall, ...]
    functions: tuple[_Function, ...]
    table: ProfileTable = field(compare=False, repr=False)

    @classmethod
    def of(cls, units: UnitGraph, unit: Unit, table: ProfileTable) -> "RecordedWork":
        """Returns the work of `unit`."""
        calls, functions = [], []
        for position, call in enumerate(library_calls(units, unit, table.hardware)):
            if call is not None and (call.is_matmul or table.has(*call.known)):
                calls.append(call)
            else:
                functions += _functions(units, unit, position)
        return cls(tuple(calls), tuple(functions), table)

    def price(self, shards: Mapping[int, int], moved_bytes: int) -> Price:
        """The seconds of one run on one device, and their weakest provenance.

        - `shards`: the number of pieces of each sharded factor.
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
            calls, beyond = [Price(longer * part.seconds, part.provenance) for part in calls], 0
        kernels = [*calls, *self._traffic(beyond)]
        functions = [self._function(function, shards) for function in self.functions]
        seconds, functions_seconds = (
            sum(part.seconds for part in group) for group in (kernels, functions)
        )
        if self.table.hardware.traits.is_bound_by_bytes:
            seconds = max(seconds, functions_seconds)
        else:
            seconds += functions_seconds
        launch = 0.0 if calls else self.table.hardware.kernel_launch_seconds
        prices = kernels + functions
        weakest = max((part.provenance for part in prices), key=list(Provenance).index)
        return Price(launch + seconds, weakest)

    def _traffic(self, moved_bytes: int) -> list[Price]:
        """Returns the price of traffic that no call contains: a list of one price or none."""
        if not moved_bytes and self.calls:
            return []
        traffic = self.table.traffic(moved_bytes)
        seconds = max(0.0, traffic.seconds - self.table.hardware.kernel_launch_seconds)
        return [Price(seconds, traffic.provenance)]

    def _function(self, found: _Function, shards: Mapping[int, int]) -> Price:
        size = max(1, found.size // prod(shards.get(factor, 1) for factor in found.factors))
        price = self.table.elementwise(found.opcode, found.dtype, size)
        if price is not None:
            return price
        rate = self.table.hardware.peak_flops_per_second(found.dtype, matmul=False)
        return Price(size / rate, Provenance.ANALYTIC)


def _functions(units: UnitGraph, unit: Unit, position: int) -> list[_Function]:
    """Returns the elementwise function of an equation in a list, which is empty if the equation
    only moves elements."""
    graph = units.graph
    equation = graph.program.equations[unit.equations[position]]
    flops = graph.equations[equation.index].flops
    if not flops or not equation.outputs:
        return []
    dtype = str(graph.program.values[equation.outputs[0]].dtype)
    factors = unit.rule.operator_factors[position]
    return [_Function(equation.name, dtype, int(flops), factors)]
