"""XLA:TPU does not fuse strided slices, interior pads, repeated elements and operands of windows.

A slice of every n-th element, and a pad that inserts elements between others, are separate kernels.
Their operands and results go through memory. The same holds for a broadcast that repeats each
element, and for the operand of a pooling window.

The rule does not cover equations between two strided ones, which XLA may simplify: a slice of a
broadcast is a broadcast.
"""

from kiwi.hlo.chains import Chains
from kiwi.hlo.equation_kinds import WINDOWED, interleaves, is_strided, repeats
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.kernels.graph import KernelGraph
from kiwi.kernels.kernel import MovedBeside
from kiwi.targets.rule import Rule, fusing
from kiwi.targets.witness import Example, Witness, array


def is_apart(chains: Chains, index: int) -> bool:
    """Returns whether a map is not fused with its readers."""
    program, opcodes = chains.graph.program, chains.graph.opcodes
    (output,) = program.equations[index].outputs
    if interleaves(program.equations[index]) or repeats(program, index):
        return True
    readers = program.readers[output]
    if any(opcodes[reader] & WINDOWED for reader in readers):
        return True
    is_sliced = any(is_strided(program.equations[reader]) for reader in readers)
    return is_sliced and not chains.is_narrow(index)


def moved_beside_strides(units: UnitGraph, unit: Unit) -> tuple[MovedBeside, ...]:
    """Returns the traffic between a unit's strided equations and the rest of the unit.

    A strided equation counts if it either takes a value that the unit reads, or is the last
    equation of the unit, but not both.
    """
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
