"""The buffer that a compiler takes to sum what devices hold summands of.

Where it takes one beside summands and result (`Rules.sums_elsewhere`), the buffer may take the
place of operands, which are read by then; not that of the step's arguments.
"""

from collections.abc import Sequence

from kiwi.hlo.unit import Unit
from kiwi.hlo.units import UnitGraph
from kiwi.mesh import DeviceMesh, TensorSharding
from kiwi.xla.rules.base import Rules


def summed_elsewhere(
    units: UnitGraph,
    unit: Unit,
    mesh: DeviceMesh,
    rules: Rules,
    reads: Sequence[TensorSharding],
    summands: int,
) -> tuple[int, ...]:
    """Bytes of the buffer that `summands` bytes are copied or summed to; none where they fit into
    the place of the operands, which lie as in `reads`."""
    values = units.graph.program.values
    read_bytes = sum(
        rules.local_bytes(units, value, layout, mesh.shape)
        for (value, _), layout in zip(unit.rule.reads, reads, strict=True)
        if values[value].producer is not None
    )
    more = summands - read_bytes
    return (more,) if more > 0 else ()
