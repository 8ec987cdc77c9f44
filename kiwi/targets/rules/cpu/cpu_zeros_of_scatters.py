"""XLA:CPU holds the zeros to which a scatter adds from the start of the step.

The result of the scatter takes over the buffer of the zeros. Two kinds of scatters are exempt. A
plan creates large zeros inside the step. A result of the function has its buffer from the start
anyway.
"""

import jax
import jax.numpy as jnp

from kiwi.hlo.units import Unit, UnitGraph
from kiwi.kernels.kernel import HeldEarly
from kiwi.targets.rule import Rule, more_of_units
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule


def _adds_to_constants(units: UnitGraph, unit: Unit) -> bool:
    """Returns whether a unit outside of loops ends with a scatter-add to a small constant, and its
    result is a temporary."""
    program = units.graph.program
    if program.equations[unit.root].name != "scatter-add":
        return False
    start = program.equations[unit.root].inputs[0]
    producer = program.values[start].producer if isinstance(start, int) else None
    if producer is None or producer not in unit.equations or program.equations[producer].reads:
        return False
    if program.is_large_constant(producer):
        return False
    fresh = program.result_values - set(units.aliased_results)
    return unit.loop is None and unit.index > 0 and fresh.isdisjoint(unit.outputs)


def _held(units: UnitGraph) -> dict[int, tuple[HeldEarly, ...]]:
    scatters = (unit.index for unit in units.units if _adds_to_constants(units, unit))
    return {index: (HeldEarly(index),) for index in scatters}


_TABLE, _BATCH = (1024, 256), (512, 256)


def _gradient(table: jax.Array, weights: jax.Array, ids: jax.Array) -> jax.Array:
    """Returns an embedding table less the gradient with respect to it, for a loss with two layers
    behind the embedding."""

    def loss(table: jax.Array) -> jax.Array:
        return jnp.sin(jnp.sin(table[ids] @ weights) @ weights).sum()

    return table - jax.grad(loss)(table)


def _adds_to_early_zeros(module: InspectedModule) -> bool:
    zeros = [
        kernel for kernel in module.kernels if kernel.reads_nothing and kernel.writes(1024 * 256)
    ]
    products = module.with_opcodes("dot")
    is_added = bool(module.with_opcodes("scatter"))
    return is_added and bool(zeros) and module.is_before(zeros[0], products[0])


WITNESS = Witness(
    says="Zeros of the table's size are written in front of the first matmul of the forward pass.",
    example=Example(_gradient, (array(*_TABLE), array(256, 256), array(_BATCH[0], dtype="int32"))),
    shows=_adds_to_early_zeros,
    control=Example(
        lambda table, weights, ids: jnp.sin(jnp.sin(table[ids] @ weights) @ weights),
        (array(*_TABLE), array(256, 256), array(_BATCH[0], dtype="int32")),
    ),
)


RULE = Rule(
    name="cpu_zeros_of_scatters",
    does="The zeros that a scatter adds to exist from the start of the step.",
    component="scheduler of XLA:CPU",
    observed="jax 0.10.2",
    evidence=("benchmarks/fidelity",),
    witness=WITNESS,
    apply=more_of_units("held_early", _held),
)
