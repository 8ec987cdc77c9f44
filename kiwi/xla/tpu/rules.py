"""What XLA:TPU does with a program, as far as memory and communication depend on it."""

from collections.abc import Sequence

from kiwi.hlo.units import UnitGraph
from kiwi.mesh import TensorSharding
from kiwi.xla.rules.base import Rules
from kiwi.xla.tpu.buffers import buffers_of


class TpuRules(Rules):
    """The rules of XLA:TPU."""

    places_in_time_order = True
    fuses_maps_into_matmuls = True

    def local_bytes(
        self, units: UnitGraph, value: int, layout: TensorSharding, mesh_shape: Sequence[int]
    ) -> int:
        """See `kiwi.xla.tpu.buffers`."""
        return buffers_of(units).local_bytes(value, layout, mesh_shape)
