"""XLA:GPU and XLA:TPU compute a costly map again in each map and reduction that reads it.

The condition is that the map's operands take no more bytes than its result, so that reading the
operands costs no more than reading the result. XLA:CPU stores the result of a costly map that
several kernels read.
"""

import jax

from kiwi.hlo.chains import Chains
from kiwi.targets.rule import Rule, fusing
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule


def reads_no_more(chains: Chains, index: int) -> bool:
    """Returns whether the operands of a chain, other than vectors, take no more bytes than its
    result."""
    return chains.is_as_small(index)


_ROWS, _COLUMNS = 64, 16_385


def _softmax(x: jax.Array) -> jax.Array:
    """Returns a softmax. The rows of the witness are too long for any compiler to reduce them in
    the kernel that writes the result."""
    return jax.nn.softmax(2.0 * x) + 1.0


def _computes_again(module: InspectedModule) -> bool:
    exponentials = module.with_opcodes("exponential")
    writers = [kernel for kernel in module.kernels if kernel.writes(_ROWS * _COLUMNS)]
    return len(exponentials) == 2 and len(writers) == 1


_TENSOR = array(_ROWS, _COLUMNS)

WITNESS = Witness(
    says="The sum and the quotient of a softmax each compute the exponentials, which no kernel "
    "writes.",
    example=Example(_softmax, (_TENSOR,)),
    shows=_computes_again,
    # Three operands take more bytes than the result.
    control=Example(lambda x, y, z: _softmax(x * y + z), (_TENSOR,) * 3),
)


RULE = Rule(
    name="maps_in_readers",
    does="A costly map is computed again in each map and reduction that reads it, if its operands "
    "take no more bytes than its result.",
    component="PriorityFusion (GPU), fusion of XLA:TPU",
    observed="jax 0.10.2, H100; libtpu 0.0.42.1, v5e",
    evidence=("tests/hlo/test_fusion.py", "benchmarks/fidelity"),
    witness=WITNESS,
    states=fusing(in_readers=(reads_no_more,)),
)
