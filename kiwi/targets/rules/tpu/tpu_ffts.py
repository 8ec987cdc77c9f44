"""XLA:TPU computes an FFT by matmuls with matrices of roots of unity.

A length that is a multiple of 128 beyond 256 is split into factors of 128 and a rest (Cooley and
Tukey 1965), one stage for each; any other length is one stage. A stage multiplies real parts,
imaginary parts and their sum. It goes through memory many times, because results are transposed and
twiddled between stages: `_PASSES` has what compiled modules move beyond operand and result.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import jax
import jax.numpy as jnp

from kiwi.hlo.program import Equation
from kiwi.hlo.units import Unit
from kiwi.kernels.graph import KernelGraph
from kiwi.kernels.kernel import MovedBeside, Workspace
from kiwi.targets.rule import Rule
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_FACTOR = 128
"""The length of a stage that is split off."""

_MOST_WHOLE = 256
"""A longer transform is split, if its length is a multiple of `_FACTOR`."""

_PASSES: Mapping[str, tuple[float, ...]] = {
    "FFT": (0, 21, 49),
    "IFFT": (0, 21, 49),
    "RFFT": (2, 24, 41),
    "IRFFT": (11, 28, 62),
}
"""How often the real part of a transform moves through memory beyond operand and result, by the
number of stages. Another stage adds as much as the last one."""

_HELD: Mapping[str, tuple[float, ...]] = {
    "FFT": (0, 0, 2),
    "IFFT": (0, 0, 2),
    "RFFT": (1, 3, 4),
    "IRFFT": (1, 2, 5),
}
"""The buffers of the size of the real part that a transform holds beside operand and result."""


@dataclass(frozen=True, kw_only=True)
class HeldStages(Workspace):
    """The buffers between the stages of a unit's transforms.

    - `parts_of_result`: the bytes of these buffers, divided by the bytes of the unit's result.
    """

    parts_of_result: float

    def buffers(
        self, shards: Mapping[int, int], read_bytes: Sequence[int], result_bytes: int
    ) -> tuple[int, ...]:
        """Returns the local bytes of the buffers, see `Workspace.buffers`."""
        lent = Workspace.buffers(self, shards, read_bytes, result_bytes)
        return (*lent, int(self.parts_of_result * result_bytes))


def stages(length: int) -> int:
    """Returns the number of stages of a transform of one dimension."""
    if length <= _MOST_WHOLE or length % _FACTOR:
        return 1
    return 1 + stages(length // _FACTOR)


def _of_stages(table: Sequence[float], count: int) -> float:
    """Returns the entry of a table for a number of stages, which it may not have."""
    if count <= len(table):
        return table[count - 1]
    return table[-1] + (count - len(table)) * (table[-1] - table[-2])


def _kind(equation: Equation) -> str:
    """Returns the kind of a transform, as HLO names it."""
    return jax.lax.FftType(equation.jaxpr_eqn.params["fft_type"]).name


def _real_bytes(equation: Equation) -> int:
    """Returns the bytes of the real part of a transform at its full lengths."""
    lengths = equation.jaxpr_eqn.params["fft_lengths"]
    operand = equation.jaxpr_eqn.invars[0].aval
    batch = operand.shape[: len(operand.shape) - len(lengths)]
    is_complex = jnp.issubdtype(operand.dtype, jnp.complexfloating)
    itemsize = operand.dtype.itemsize // (2 if is_complex else 1)
    return prod(batch) * prod(lengths) * itemsize


def _sum_over_dimensions(equation: Equation, table: Mapping[str, Sequence[float]]) -> float:
    """Returns the sum of a table's entries over the dimensions of a transform."""
    entries = table[_kind(equation)]
    lengths = equation.jaxpr_eqn.params["fft_lengths"]
    return sum(_of_stages(entries, stages(length)) for length in lengths)


def _transforms(graph: KernelGraph, unit: Unit) -> Iterator[tuple[int, Equation]]:
    """Yields the transforms of a unit, with their positions among its equations."""
    for place, index in enumerate(unit.equations):
        equation = graph.units.graph.program.equations[index]
        if equation.name == "fft":
            yield place, equation


def _held(graph: KernelGraph, unit: Unit) -> float:
    """Returns the bytes that the stages of a unit's transforms hold, divided by the bytes of its
    result."""
    values = graph.units.graph.program.values
    result_bytes = sum(values[output].size_bytes for output in unit.outputs)
    held = (
        _sum_over_dimensions(equation, _HELD) * _real_bytes(equation)
        for _, equation in _transforms(graph, unit)
    )
    return max(held, default=0.0) / max(1, result_bytes)


def _apply(graph: KernelGraph) -> KernelGraph:
    units = graph.units.units
    moved = {
        unit.index: tuple(
            MovedBeside(place, int(_sum_over_dimensions(equation, _PASSES) * _real_bytes(equation)))
            for place, equation in _transforms(graph, unit)
        )
        for unit in units
    }
    shares = {unit.index: _held(graph, unit) for unit in units}
    held = {index: HeldStages(parts_of_result=share) for index, share in shares.items() if share}
    return graph.adding("moved_beside", moved).stating("workspace", held)


_ROWS, _LENGTH = 64, 4096


def _transformed(x: jax.Array) -> jax.Array:
    return jnp.abs(jnp.fft.rfft(x))


def _multiplies(module: InspectedModule) -> bool:
    return len(module.with_opcodes("convolution")) >= 2 and not module.with_opcodes("fft")


WITNESS = Witness(
    says="Several kernels multiply by matrices of roots of unity, and none is an FFT.",
    example=Example(_transformed, (array(_ROWS, _LENGTH),)),
    shows=_multiplies,
    control=Example(lambda x: jnp.abs(jnp.sin(x)), (array(_ROWS, _LENGTH),)),
)


RULE = Rule(
    name="tpu_ffts",
    does="An FFT is matmuls with matrices of roots of unity: one stage, or one for each factor of "
    "128 of a longer length. Its stages move through memory up to 62 times the real part.",
    component="FFT expansion of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e: lengths 64 to 131,072 along the last and a middle "
    "dimension",
    evidence=("tests/targets/test_tpu_ffts.py", "benchmarks/field"),
    witness=WITNESS,
    limits="Transposes around a transform along another dimension than the last are not counted.",
    apply=_apply,
)
