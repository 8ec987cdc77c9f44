"""XLA:GPU slices an iteration's element of a stack inside the kernels that read the element.

A matmul or convolution of a library reads no slices: for it a kernel copies the element first.
"""

import jax
import jax.numpy as jnp
from jax import lax

from kiwi.hlo.equation_kinds import LIBRARY_OPCODES
from kiwi.hlo.loops import SLICE
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.targets.rule import Rule, of_units
from kiwi.targets.witness import Example, Witness, array


def is_in_readers(units: UnitGraph, unit: Unit) -> bool:
    """Returns whether a unit is a slice of a stacked tensor that no library call and no region
    reads."""
    if units.border(unit) != SLICE:
        return False
    graph, (value,) = units.graph, unit.outputs
    return not any(
        graph.opcodes[reader] & LIBRARY_OPCODES or graph.equations[reader].is_region
        for reader in graph.program.readers[value]
    )


_LENGTH, _WIDTH = 16, 512


def _scanned(x: jax.Array, w: jax.Array, *, multiplies: bool) -> jax.Array:
    def body(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        return jnp.sin(carry) + (x @ w if multiplies else jnp.cos(x)), None

    return lax.scan(body, x[0], x)[0]


def _summed(x: jax.Array, w: jax.Array) -> jax.Array:
    return _scanned(x, w, multiplies=False)


def _multiplied(x: jax.Array, w: jax.Array) -> jax.Array:
    return _scanned(x, w, multiplies=True)


_ARGUMENTS = array(_LENGTH, _WIDTH, _WIDTH), array(_WIDTH, _WIDTH)

WITNESS = Witness(
    says="The kernel that computes the cosine takes the slice.",
    example=Example(_summed, _ARGUMENTS),
    shows=lambda module: bool(module.with_opcodes("dynamic-slice", "cosine")),
    control=Example(_multiplied, _ARGUMENTS),
)


RULE = Rule(
    name="gpu_slices_in_readers",
    does="The element of a stacked tensor that an iteration reads is taken in the kernels that "
    "read it, except for a library's.",
    component="PriorityFusion",
    observed="jax 0.10.2, H100",
    evidence=("tests/targets/test_gpu_iterations.py", "benchmarks/field"),
    witness=WITNESS,
    apply=of_units(
        "in_readers", lambda units: {u.index: True for u in units.units if is_in_readers(units, u)}
    ),
)
