"""XLA:TPU fuses strided slices, pads between elements and operands of windows with nothing.

A slice of every n-th element, and a pad that puts elements so far apart, are kernels of their own:
what they read or yield goes through memory. So does an element that is repeated between others, and
what a pooling window slides over.

What XLA makes of equations between two such ones is not said: slices of broadcasts are broadcasts.
"""

from kiwi.hlo.chains import Chains
from kiwi.hlo.equation_kinds import WINDOWED, interleaves, repeats
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.kernels.graph import KernelGraph
from kiwi.kernels.kernel import MovedBeside
from kiwi.kernels.strides import is_strided
from kiwi.targets.rule import Rule, fusing
from kiwi.targets.witness import Example, Witness, array


def is_apart(chains: Chains, index: int) -> bool:
    """Whether a map is not fused with what reads it."""
    program, opcodes = chains.graph.program, chains.graph.opcodes
    (output,) = program.equations[index].outputs
    if interleaves(program.equations[index]) or repeats(program, index):
        return True
    return any(opcodes[reader] & WINDOWED for reader in program.readers[output])


def moved_beside_strides(units: UnitGraph, unit: Unit) -> tuple[MovedBeside, ...]:
    """The strided equations that take what a unit reads, or yield its result: what goes through
    memory between each of them and the rest of the unit."""
    program = units.graph.program
    equations = [program.equations[index] for index in unit.equations]
    read = {value for value, _ in unit.rule.reads}
    moved = []
    for place, equation in enumerate(equations):
        if not is_strided(equation):
            continue
        is_first, is_last = equation.reads[0] in read, place == len(equations) - 1
        if is_first != is_last:
            (value, *_) = equation.outputs if is_first else equation.reads
            moved.append(MovedBeside(place, 2 * program.values[value].size_bytes))
    return tuple(moved)


def _apply(graph: KernelGraph) -> KernelGraph:
    units = graph.units
    moved = {unit.index: moved_beside_strides(units, unit) for unit in units.units}
    return graph.adding("moved_beside", moved)


WITNESS = Witness(
    says="Both slices are kernels of their own in front of the addition.",
    example=Example(lambda x: x[:, ::2] + x[:, 1::2], (array(512, 512),)),
    shows=lambda module: len(module.kernels) == 3 and len(module.with_opcodes("slice")) == 2,
    control=Example(lambda x: x[:, :256] + x[:, 256:], (array(512, 512),)),
)


RULE = Rule(
    name="unfused_strides",
    does="Slices of every n-th element, pads between elements and operands of windows are fused "
    "with nothing.",
    component="fusion of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("tests/targets/test_unfused_strides.py",),
    witness=WITNESS,
    states=fusing(apart=(is_apart,)),
    apply=_apply,
)
