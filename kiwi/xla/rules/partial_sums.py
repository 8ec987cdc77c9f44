"""Memory that a compiler takes to sum what devices hold summands of, beyond summands and result.

- XLA:CPU writes sums to another place than the summands; XLA:GPU all-reduces in place (jax
  0.10.2, a product whose operands are cut along what is summed over).
- XLA:GPU reduce-scatters along the most major dimension only (`GpuLayoutAssignment`), and the
  convolution library writes images in the order batch, features, space, in 16 bits features last.
  Summands that are scattered along another dimension are transposed first. Matmuls write them in
  the order wanted.

Both may take the place of operands, which are read by then; not that of the step's arguments.
`tests/plans/test_memory.py` holds the first, `tests/xla/test_gpu.py` the second.
"""

from collections.abc import Collection, Sequence
from math import prod

from kiwi.hlo.unit import Unit
from kiwi.hlo.units import UnitGraph
from kiwi.mesh import DeviceMesh, TensorSharding

_FEATURES_LAST_BYTES = 2
"""Up to this size of an element the library writes the features last."""


def summed_elsewhere(
    units: UnitGraph, unit: Unit, mesh: DeviceMesh, reads: Sequence[TensorSharding], summands: int
) -> tuple[int, ...]:
    """Bytes of the buffer that `summands` bytes are copied or summed to; none where they fit into
    the place of the operands, which lie as in `reads`."""
    values = units.graph.program.values
    read_bytes = sum(
        values[value].size_bytes // layout.shard_count(mesh.shape)
        for (value, _), layout in zip(unit.rule.reads, reads, strict=True)
        if values[value].producer is not None
    )
    more = summands - read_bytes
    return (more,) if more > 0 else ()


def is_transposed(
    units: UnitGraph,
    unit: Unit,
    mesh: DeviceMesh,
    summands: TensorSharding,
    scattered: Collection[int],
) -> bool:
    """Whether XLA:GPU transposes a convolution's summands to scatter them.

    `summands`: how they lie; `scattered`: the dimensions that are cut.
    """
    program = units.graph.program
    equation = program.equations[unit.root]
    if equation.name != "conv_general_dilated":
        return False
    info = program.values[equation.outputs[0]]
    batch, features, *space = equation.jaxpr_eqn.params["dimension_numbers"].out_spec
    order = (batch, features, *space)
    if info.dtype.itemsize <= _FEATURES_LAST_BYTES:
        order = (batch, *space, features)
    cuts = [prod(mesh.shape[a] for a in axes) for axes in summands.dims]
    longer = [d for d in order if info.shape[d] > cuts[d]]
    return bool(longer) and any(d != longer[0] for d in scattered)
