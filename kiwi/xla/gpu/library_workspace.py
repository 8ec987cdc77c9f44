"""What XLA:GPU lends cuBLAS while it multiplies.

From compute capability 9.0 on 32 MiB, before that 4 MiB, whatever is multiplied; nothing where XLA
generates the code itself, which it does for integers, vectors, and matrices of a hundred elements.

Observed with jax 0.10.2 for each GPU of the catalogue; `tests/xla/gpu/test_compiler.py` holds it.
"""

import functools
import re
from math import prod
from typing import Any

import jax.numpy as jnp

from kiwi.errors import CompilerUnavailableError
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.mesh import Hardware
from kiwi.xla.gpu.target_config import target_config
from kiwi.xla.rules.base import Workspace
from kiwi.xla.rules.matrix_operands import MATMUL

_HOPPER = 9
_BYTES, _BYTES_FROM_HOPPER = 4 * 2**20, 32 * 2**20
_GENERATED_ELEMENTS = 100
"""XLA's `gemm_rewrite_size_threshold`: of both operands."""

_CAPABILITY = re.compile(r"cuda_compute_capability\s*\{\s*major:\s*(\d+)")


def library_workspace(units: UnitGraph, unit: Unit, hardware: Hardware) -> Workspace:
    """What a unit is lent that multiplies."""
    equations = (units.graph.program.equations[index] for index in unit.equations)
    multiplies = any(e.name == MATMUL and _is_of_library(e.jaxpr_eqn) for e in equations)
    return Workspace(lent_bytes=lent_bytes(hardware) if multiplies else 0)


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
