"""Random reshardings: mesh, links, rank, shape, element type, and two layouts."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import jax.numpy as jnp

from kiwi.hlo.program import Value
from kiwi.mesh import DeviceMesh, ReshardingTable, TensorSharding
from kiwi.mesh.moves import divisible_pattern, move_graph
from kiwi.problem.edges import resharding_table
from kiwi.targets.registry import target_named

_MESHES = ((8,), (2, 4), (4, 2), (2, 2, 2))
_HARDWARE = ("v100-sxm2", "h100-sxm", "cpu")
_SIZES = (8, 16, 24, 40, 64, 96, 256, 1024)
_DTYPES = ("float32", "bfloat16", "float16", "int32", "int8")
_MOST_ELEMENTS = 2**28


@dataclass(frozen=True)
class Case:
    """The resharding of one tensor from `source` to `target`."""

    mesh: DeviceMesh
    shape: tuple[int, ...]
    dtype: str
    source: TensorSharding
    target: TensorSharding

    def table(self, target: str) -> ReshardingTable:
        """Returns prices on the case's links, for the bytes that programs of a compiler move."""
        dtype = jnp.dtype(self.dtype)
        value = Value(0, self.shape, dtype, dtype.itemsize, is_extended=False, producer=None)
        return resharding_table(self.mesh, target_named(target).facts(self.mesh.hardware), value)

    def __str__(self) -> str:
        layouts = f"{self.mesh.describe(self.source)} → {self.mesh.describe(self.target)}"
        mesh = "x".join(map(str, self.mesh.shape))
        return f"{mesh} {self.mesh.hardware.name} {self.dtype}{list(self.shape)} {layouts}"


def random_cases(count: int, seed: int) -> Iterator[Case]:
    """Yields random cases, the same for the same seed. Layouts are arbitrary, with any order of the
    axes of a dimension."""
    rng = random.Random(seed)
    while count:
        mesh = DeviceMesh.create(rng.choice(_MESHES), rng.choice(_HARDWARE))
        shape = tuple(rng.choice(_SIZES) for _ in range(rng.randint(1, 4)))
        dtype = rng.choice(_DTYPES)
        if prod(shape) <= _MOST_ELEMENTS:
            states = move_graph(mesh.shape, divisible_pattern(shape, mesh)).states
            source, target = rng.sample(states, 2)
            yield Case(mesh, shape, dtype, source, target)
            count -= 1
