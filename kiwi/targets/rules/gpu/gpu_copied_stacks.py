"""XLA:GPU copies a value that a loop stacks for another loop into the stack by a separate kernel.

The value passes through memory several times. The stack is first filled with zeros. Then each
element is read and written to the stack. If a matmul of the other loop reads the element, a kernel
also reads the element and writes a copy for it. Kernels of TPUs write an element directly to its
place in the stack.
"""

import jax
import jax.numpy as jnp
from jax import lax

from kiwi.hlo.large_operators import multiplies
from kiwi.hlo.loops import CARRY, LoopKind
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.targets.rule import Rule, of_units
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_PASSES, _PASSES_OF_MATMULS = 3, 5
"""How often a stacked value passes through memory: if only fused kernels read it, and if a matmul
reads it."""


def passes_of_stacks(units: UnitGraph, unit: Unit) -> int:
    """Returns how often the result of a unit passes through memory on its way into the stack that
    another loop reads; 0 if no other loop reads it.

    The unit computes a value in the body of a scan, or is a carry.
    """
    program, border = units.graph.program, units.border(unit)
    if unit.loop is None or program.loops[unit.loop].kind is not LoopKind.SCAN:
        return 0
    if border not in (None, CARRY) or len(unit.outputs) != 1:
        return 0
    (value,) = unit.outputs
    readers = (units.units[reader] for reader in units.readers.get(value, ()))
    readers_in_loops = [reader for reader in readers if reader.loop not in (None, unit.loop)]
    equations = [
        index
        for reader in readers_in_loops
        for index in reader.equations
        if value in program.equations[index].reads
    ]
    if not readers_in_loops:
        return 0
    is_multiplied = any(multiplies(units.graph, index) for index in equations)
    return _PASSES_OF_MATMULS if is_multiplied else _PASSES


def _stacked(units: UnitGraph) -> dict[int, int]:
    passes = {unit.index: passes_of_stacks(units, unit) for unit in units.units}
    return {index: count for index, count in passes.items() if count}


_WIDTH, _ROWS, _LENGTH = 256, 512, 8


def _final(w: jax.Array, x: jax.Array) -> jax.Array:
    return lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=_LENGTH)[0]


def _gradient(w: jax.Array, x: jax.Array) -> jax.Array:
    """Returns the gradient of a scan. Its backward pass is a loop that reads the states of the
    forward pass's iterations."""
    return jax.grad(lambda x: _final(w, x).sum())(x)


def _copies_into_stack(module: InspectedModule) -> bool:
    stacks = [
        kernel
        for kernel in module.kernels
        if kernel.reads_nothing and kernel.writes(_LENGTH * _ROWS * _WIDTH)
    ]
    updates = module.with_opcodes("dynamic-update-slice")
    is_copied = bool(updates) and not any(kernel.computes("tanh") for kernel in updates)
    return bool(stacks) and is_copied


WITNESS = Witness(
    says="Zeros are written for the stack, and a kernel apart from tanh writes each state there.",
    example=Example(_gradient, (array(_WIDTH, _WIDTH), array(_ROWS, _WIDTH))),
    shows=_copies_into_stack,
    control=Example(_final, (array(_WIDTH, _WIDTH), array(_ROWS, _WIDTH))),
)


RULE = Rule(
    name="gpu_copied_stacks",
    does="What a loop hands to another one is computed first, and copied into its stack then.",
    component="WhileLoop emission of XLA:GPU",
    observed="jax 0.10.2, H100",
    evidence=("tests/problem/test_costs.py",),
    witness=WITNESS,
    apply=of_units("stack_passes", _stacked),
)
