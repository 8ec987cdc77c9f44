"""A scan that a plan does not open may hold its stacked results from the start of the step.

The scan writes its stacked results slice by slice into a buffer of zeros. The zeros depend on
nothing, so that XLA's scheduler may write them first. The barriers of a plan do not reach them.
"""

from itertools import compress

import jax
import jax.numpy as jnp
from jax import lax

from kiwi.hlo.units import Unit, UnitGraph
from kiwi.kernels.kernel import HeldEarly
from kiwi.targets.rule import Rule, more_of_units
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule


def _held(units: UnitGraph, unit: Unit) -> tuple[HeldEarly, ...]:
    program = units.graph.program
    scan = program.equations[unit.root]
    if scan.name != "scan" or unit.index == 0:
        return ()
    sizes = [program.values[output].size_bytes for output in unit.outputs]
    stacked_bytes = sum(compress(sizes, scan.stacked_outputs))
    return (HeldEarly(unit.index, stacked_bytes, max(1, sum(sizes))),)


_LENGTH, _WIDTH = 256, 512


def _scanned(y: jax.Array, *, stacks: bool) -> jax.Array:
    def body(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        return jnp.sin(carry + x), carry * x if stacks else None

    final, stacked = lax.scan(body, y[0], y)
    return final.sum() + (0.0 if stacked is None else jnp.sin(stacked).sum())


def _makes_stack_of_nothing(module: InspectedModule) -> bool:
    elements = _LENGTH * _WIDTH
    made = [kernel for kernel in module.kernels if kernel.reads_nothing and kernel.writes(elements)]
    updates = [
        kernel for kernel in module.with_opcodes("dynamic-update-slice") if kernel.writes(elements)
    ]
    return len(made) == 1 and bool(updates) and module.is_before(made[0], updates[0])


_ARGUMENTS = array(_LENGTH, _WIDTH), array(_WIDTH, _WIDTH)

WITNESS = Witness(
    says="A kernel that reads nothing makes the buffer that the loop writes its slices to.",
    example=Example(lambda x, w: _scanned(x @ w, stacks=True), _ARGUMENTS),
    shows=_makes_stack_of_nothing,
    control=Example(lambda x, w: _scanned(x @ w, stacks=False), _ARGUMENTS),
)


RULE = Rule(
    name="whole_scans",
    does="The stacked results of a scan that is left whole have a buffer that depends on nothing, "
    "and may exist from the start of the step.",
    component="WhileLoop lowering of `jax.lax.scan`, HeapSimulator",
    observed="jax 0.10.2",
    evidence=("benchmarks/fidelity",),
    witness=WITNESS,
    apply=more_of_units(
        "held_early", lambda units: {u.index: _held(units, u) for u in units.units}
    ),
)
