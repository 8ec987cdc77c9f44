"""The collectives that XLA compiles for a resharding, or for an operator that leaves partial
sums."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from benchmarks.resharding.cases import Case
from kiwi.mesh import DeviceMesh, ReshardingStep, TensorSharding, collective, hardware
from kiwi.mesh.moves import SLICE
from kiwi.xla.compilers import named
from kiwi.xla.gpu.compiler import compile_only_devices
from kiwi.xla.gpu.target_config import target_config
from kiwi.xla.read.collectives import AxisUse, CollectiveUse, read_axis_uses
from kiwi.xla.read.hlo_text import parse_module

TOLERANCE = 0.05
"""The largest relative difference of bytes that counts as agreement."""

Uses = Mapping[str, CollectiveUse]
"""Count and bytes of collectives, by kind."""


class Target:
    """A compiler and its devices: "cpu", or "cuda" for GPUs that need not be attached."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.compiler = named(name)
        self._options = dict(self.compiler.run_options)
        self._devices: list[Any] = jax.devices("cpu")
        if name == "cuda":
            self._devices = compile_only_devices(target_config(hardware("h100-sxm")), 8)
            # Nothing is executed, so kernels need neither tuning nor optimisation.
            self._options = {**self.compiler.check_options, "xla_backend_optimization_level": 0}

    def reshard(self, case: Case, waypoints: Sequence[TensorSharding] = ()) -> tuple[AxisUse, ...]:
        """Returns the collectives of a program that only reshards."""

        def reshard(value: jax.Array) -> jax.Array:
            for waypoint in waypoints:
                place = self._placing(case.mesh)
                value = jax.lax.with_sharding_constraint(value, place(waypoint))
            return value

        shapes = [jax.ShapeDtypeStruct(case.shape, jnp.dtype(case.dtype))]
        return self.uses(reshard, case.mesh, shapes, [case.source], case.target)

    def uses(
        self,
        function: Callable[..., jax.Array],
        mesh: DeviceMesh,
        shapes: Sequence[jax.ShapeDtypeStruct],
        sources: Sequence[TensorSharding],
        result: TensorSharding,
    ) -> tuple[AxisUse, ...]:
        """Returns the collectives of a compiled function of arrays."""
        place = self._placing(mesh)
        jitted = jax.jit(
            function, in_shardings=tuple(map(place, sources)), out_shardings=place(result)
        )
        text = jitted.lower(*shapes).compile(compiler_options=self._options).as_text()
        assert text is not None
        return read_axis_uses(parse_module(text), mesh.shape, mesh.axis_names)

    def _placing(self, mesh: DeviceMesh) -> Callable[[TensorSharding], NamedSharding]:
        grid = np.array(self._devices[: mesh.size], dtype=object).reshape(mesh.shape)
        types = (AxisType.Auto,) * len(mesh.shape)
        jax_mesh = Mesh(grid, mesh.axis_names, axis_types=types)
        return lambda sharding: NamedSharding(jax_mesh, mesh.partition_spec(sharding))


def foreseen(steps: Sequence[ReshardingStep]) -> Uses:
    """Returns the collectives of a chain of moves, by kind."""
    uses: dict[str, CollectiveUse] = {}
    for step in steps:
        if step.kind != SLICE:
            use = CollectiveUse(1, step.bytes)
            uses[step.kind] = uses.get(step.kind, CollectiveUse(0, 0)) + use
    return uses


def seconds(mesh: DeviceMesh, uses: Sequence[AxisUse]) -> float:
    """Returns the predicted time of compiled collectives. A collective without axes runs over all
    axes."""
    axes_of = {name: axis for axis, name in enumerate(mesh.axis_names)}
    total = 0.0
    for use in uses:
        axes = range(len(mesh.shape)) if use.axes is None else [axes_of[name] for name in use.axes]
        total += use.count * collective(use.kind, mesh, axes, use.bytes // use.count).seconds
    return total


def agree(predicted: Uses, compiled: Uses) -> bool:
    """Returns whether kinds and their counts are equal, and bytes differ by at most `TOLERANCE`."""
    if {k: u.count for k, u in predicted.items()} != {k: u.count for k, u in compiled.items()}:
        return False
    pairs = [(use.bytes, compiled[kind].bytes) for kind, use in predicted.items()]
    return all(abs(a - b) <= TOLERANCE * max(a, b) for a, b in pairs)
