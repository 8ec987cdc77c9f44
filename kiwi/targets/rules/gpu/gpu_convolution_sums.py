"""XLA:GPU transposes the partial sums of a convolution to reduce-scatter them.

XLA:GPU reduce-scatters along the most major dimension only (`GpuLayoutAssignment`). The convolution
library writes images in the order batch, features, space; in 16 bits it writes features last.
Matmuls write partial sums in the order that is needed.
"""

from collections.abc import Collection, Sequence

from jax.sharding import PartitionSpec as P

from kiwi.hlo.program import Equation
from kiwi.kernels.matrix_operands import CONVOLUTION
from kiwi.targets.rule import Rule, stating
from kiwi.targets.witness import Example, Witness, array, convolved
from kiwi.xla.read.inspected import InspectedModule

_FEATURES_LAST_BYTES = 2
"""The element size up to which the convolution library writes features last. It writes wider images
with features behind the batch."""


def sums_elsewhere(root: Equation, cuts: Sequence[int], scattered: Collection[int]) -> bool:
    """Returns whether the partial sums of a convolution are scattered along another dimension than
    the most major one; see `kiwi.kernels.facts.SumsElsewhere`."""
    if root.name != CONVOLUTION:
        return False
    result = root.jaxpr_eqn.outvars[0].aval
    batch, features, *space = root.jaxpr_eqn.params["dimension_numbers"].out_spec
    order = (batch, features, *space)
    if result.dtype.itemsize <= _FEATURES_LAST_BYTES:
        order = (batch, *space, features)
    longer = [dimension for dimension in order if result.shape[dimension] > cuts[dimension]]
    return bool(longer) and any(dimension != longer[0] for dimension in scattered)


_IMAGES, _KERNEL, _RESULT_ELEMENTS = (32, 16, 16, 64), (3, 3, 64, 32), 32 * 16 * 16 * 32


def _scattered_to(result: P) -> Example:
    """Returns a convolution whose images and kernel are cut along the features that it sums over.
    `result`: the sharding of the result."""
    features = P(None, None, None, "x"), P(None, None, "x")
    return Example(convolved, (array(*_IMAGES), array(*_KERNEL)), (8,), features, result)


def _transposes_sums(module: InspectedModule) -> bool:
    transposes = [
        kernel for kernel in module.with_opcodes("transpose") if kernel.writes(_RESULT_ELEMENTS)
    ]
    return len(transposes) == 1 and "reduce-scatter" in module.collectives


WITNESS = Witness(
    says="The sums that are scattered along features are transposed as a whole first.",
    example=_scattered_to(P(None, None, None, "x")),
    shows=_transposes_sums,
    control=_scattered_to(P("x")),
)


RULE = Rule(
    name="gpu_convolution_sums",
    does="Partial sums of a convolution that are scattered along another dimension than the most "
    "major one are transposed to another buffer first.",
    component="GpuLayoutAssignment, cuDNN",
    observed="jax 0.10.2, H100",
    evidence=("tests/xla/gpu/test_compiler.py",),
    witness=WITNESS,
    states=stating(sums_elsewhere=sums_elsewhere),
)
