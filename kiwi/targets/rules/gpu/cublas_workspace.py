"""XLA:GPU lends cuBLAS a buffer while it multiplies.

The buffer has 32 MiB from compute capability 9.0 on, 4 MiB before, whatever is multiplied. Nothing
is lent where XLA generates the code itself: for integers, vectors, and matrices of a hundred
elements.
"""

import functools
import re
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from kiwi.errors import CompilerUnavailableError
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.kernels.graph import KernelGraph
from kiwi.kernels.kernel import Workspace
from kiwi.kernels.matrix_operands import MATMUL
from kiwi.mesh import Hardware
from kiwi.targets.rule import Rule
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.gpu.target_config import target_config

_HOPPER = 9
_BYTES, _BYTES_FROM_HOPPER = 4 * 2**20, 32 * 2**20
_GENERATED_ELEMENTS = 100
"""XLA's `gemm_rewrite_size_threshold`: of both operands."""

_CAPABILITY = re.compile(r"cuda_compute_capability\s*\{\s*major:\s*(\d+)")


def multiplies_with_library(units: UnitGraph, unit: Unit) -> bool:
    """Whether cuBLAS computes a matmul of a unit."""
    equations = (units.graph.program.equations[index] for index in unit.equations)
    return any(e.name == MATMUL and _is_of_library(e.jaxpr_eqn) for e in equations)


def _is_of_library(eqn: Any) -> bool:
    """Whether cuBLAS computes a `dot_general`."""
    summed_of, batch_of = eqn.params["dimension_numbers"]
    elements = 0
    for operand, summed, batch in zip(eqn.invars, summed_of, batch_of, strict=True):
        own = {d: size for d, size in enumerate(operand.aval.shape) if d not in batch}
        is_vector = prod(size for d, size in own.items() if d not in summed) == 1
        if is_vector or not jnp.issubdtype(operand.aval.dtype, jnp.inexact):
            return False
        elements += prod(own.values())
    return elements > _GENERATED_ELEMENTS


@functools.cache
def lent_bytes(hardware: Hardware) -> int:
    """What cuBLAS is lent for a matmul; nothing of GPUs that are not described to XLA: they have no
    cuBLAS, for all that is known."""
    try:
        found = _CAPABILITY.search(target_config(hardware))
    except CompilerUnavailableError:
        return 0
    return _BYTES_FROM_HOPPER if found and int(found[1]) >= _HOPPER else _BYTES


def _apply(graph: KernelGraph) -> KernelGraph:
    lent = Workspace(lent_bytes=lent_bytes(graph.hardware))
    units = graph.units
    multiplying = (u.index for u in units.units if multiplies_with_library(units, u))
    return graph.stating("workspace", dict.fromkeys(multiplying, lent))


def _multiplied(x: jax.Array, w: jax.Array) -> jax.Array:
    return x @ w


WITNESS = Witness(
    says="The matmul has a temporary of 32 MiB.",
    example=Example(_multiplied, (array(256, 256),) * 2),
    shows=lambda module: module.temporaries_of(_BYTES_FROM_HOPPER) == 1,
    control=Example(_multiplied, (array(256, 256, dtype="int32"),) * 2),
)


RULE = Rule(
    name="cublas_workspace",
    does="cuBLAS is lent 32 MiB while it multiplies, 4 MiB before compute capability 9.0.",
    component="GemmRewriter, cuBLAS",
    observed="jax 0.10.2, each GPU of the catalogue",
    evidence=("tests/xla/gpu/test_compiler.py",),
    witness=WITNESS,
    apply=_apply,
)
