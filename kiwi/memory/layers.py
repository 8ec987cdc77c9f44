"""Full rematerialisation layer by layer, in scans and in programs whose layers are unrolled.

The layers of an unrolled program are found by structure: each begins with one of the units that
repeat (`kiwi.hlo.repeated_layers`), and ends where the next one begins. Of the repeated units that
one counts for which the fewest bytes pass from layer to layer: in a transformer the residual
stream. What passes is kept, all else of a layer runs again where its backward pass begins.
"""

from bisect import bisect
from collections.abc import Iterator, Sequence

from kiwi.hlo.graph import Phase
from kiwi.hlo.repeated_layers import Shift, repeated_layers
from kiwi.hlo.units import UnitGraph
from kiwi.memory.residency import UnitResidency, forward_bodies, rewritten


def rematerialised_layers(units: UnitGraph) -> tuple[UnitResidency, ...]:
    """The only residency of every unit, in order, as with `jax.checkpoint` around each layer."""
    bodies = forward_bodies(units)
    return rewritten(units, bodies | _inside_of_layers(units, bodies))


def _inside_of_layers(units: UnitGraph, bodies: set[int]) -> set[int]:
    """The forward units outside of these loops whose results no other layer reads; empty where no
    layers repeat."""
    forward = {u.index for u in units.units if u.phase is Phase.FORWARD} - bodies
    starts = _starts(repeated_layers(units), forward)
    passing = ((_passing(units, each), each) for each in starts)
    best = min(passing, key=lambda each: (_bytes(units, each[0]), each[1]), default=None)
    return set() if best is None else forward - best[0]


def _starts(shift: Shift, forward: set[int]) -> Iterator[list[int]]:
    """For each unit of the first layer's forward pass its counterparts in all layers, in order."""
    images = shift.units.images
    behind = set(images.values())
    for first in images:
        if first in forward and first not in behind:
            chain = [first]
            while chain[-1] in images:
                chain.append(images[chain[-1]])
            yield sorted(chain)


def _passing(units: UnitGraph, starts: Sequence[int]) -> set[int]:
    """The forward units whose results are read in another layer than their own."""
    layer = [bisect(starts, unit.index) for unit in units.units]
    return {
        unit.index
        for unit in units.units
        if unit.phase is Phase.FORWARD
        for output in unit.outputs
        for reader in units.readers.get(output, ())
        if units.units[reader].phase is Phase.FORWARD and layer[reader] != layer[unit.index]
    }


def _bytes(units: UnitGraph, passing: set[int]) -> int:
    values = units.graph.program.values
    return sum(values[output].size_bytes for u in passing for output in units.units[u].outputs)
