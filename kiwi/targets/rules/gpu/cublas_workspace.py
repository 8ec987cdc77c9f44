"""XLA:GPU lends cuBLAS a workspace during each matmul.

The workspace has 4 MiB, whatever the sizes of the matmul. Before jax 0.12 it has 32 MiB on GPUs of
compute capability 9.0 and later. XLA generates the code of some matmuls itself, and lends no
workspace for them: matmuls of integers, of vectors, outer products, and small matmuls.
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
"""The major compute capability of Hopper."""

_BYTES, _FORMER_BYTES_FROM_HOPPER = 4 * 2**20, 32 * 2**20
_SAME_FOR_ALL_SINCE = (0, 12)
"""The version of jax from which on all GPUs have the same workspace. Versions between 0.10 and 0.12
are taken to behave as 0.10."""

_GENERATED_ELEMENTS = 100
"""XLA's `gemm_rewrite_size_threshold`: the elements of both operands together. Larger matmuls go to
cuBLAS."""

_CAPABILITY = re.compile(r"cuda_compute_capability\s*\{\s*major:\s*(\d+)")


def multiplies_with_library(units: UnitGraph, unit: Unit) -> bool:
    """Returns whether cuBLAS computes a matmul of the unit."""
    equations = (units.graph.program.equations[index] for index in unit.equations)
    return any(
        equation.name == MATMUL and _is_of_library(equation.jaxpr_eqn) for equation in equations
    )


def _is_of_library(eqn: Any) -> bool:
    """Returns whether cuBLAS computes the `dot_general` `eqn`, a `JaxprEqn`."""
    summed_of, batch_of = eqn.params["dimension_numbers"]
    elements = 0
    if not summed_of[0]:
        return False
    for operand, summed, batch in zip(eqn.invars, summed_of, batch_of, strict=True):
        matrix_sizes = {
            dimension: size
            for dimension, size in enumerate(operand.aval.shape)
            if dimension not in batch
        }
        is_vector = (
            prod(size for dimension, size in matrix_sizes.items() if dimension not in summed) == 1
        )
        if is_vector or not jnp.issubdtype(operand.aval.dtype, jnp.inexact):
            return False
        elements += prod(matrix_sizes.values())
    return elements > _GENERATED_ELEMENTS


@functools.cache
def lent_bytes(hardware: Hardware) -> int:
    """Returns the bytes of the workspace that cuBLAS is lent for a matmul.

    The result is 0 for GPUs without a description for XLA:GPU, since these may not have cuBLAS.
    """
    try:
        capability = _CAPABILITY.search(target_config(hardware))
    except CompilerUnavailableError:
        return 0
    return _bytes_from_hopper() if capability and int(capability[1]) >= _HOPPER else _BYTES


def _bytes_from_hopper() -> int:
    """Returns the bytes of the workspace on GPUs of compute capability 9.0 and later."""
    is_same = jax.__version_info__ >= _SAME_FOR_ALL_SINCE
    return _BYTES if is_same else _FORMER_BYTES_FROM_HOPPER


def _apply(graph: KernelGraph) -> KernelGraph:
    lent = Workspace(lent_bytes=lent_bytes(graph.hardware))
    units = graph.units
    multiplying = (unit.index for unit in units.units if multiplies_with_library(units, unit))
    return graph.stating("workspace", dict.fromkeys(multiplying, lent))


def _multiplied(x: jax.Array, w: jax.Array) -> jax.Array:
    return x @ w


WITNESS = Witness(
    says="The matmul has a temporary of 32 MiB, of 4 MiB from jax 0.12 on.",
    example=Example(_multiplied, (array(256, 256),) * 2),
    shows=lambda module: module.temporaries_of(_bytes_from_hopper()) == 1,
    control=Example(_multiplied, (array(256, 256, dtype="int32"),) * 2),
)


RULE = Rule(
    name="cublas_workspace",
    does="cuBLAS is lent 4 MiB while it multiplies; before jax 0.12 it is lent 32 MiB from compute "
    "capability 9.0 on.",
    component="GemmRewriter, cuBLAS",
    observed="jax 0.10.2, each GPU of the catalogue; jax 0.12.0.1, H100",
    evidence=("tests/xla/gpu/test_compiler.py",),
    witness=WITNESS,
    apply=_apply,
)
