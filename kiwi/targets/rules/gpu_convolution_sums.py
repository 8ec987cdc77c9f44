"""XLA:GPU transposes the partial sums of a convolution to reduce-scatter them.

It reduce-scatters along the most major dimension only (`GpuLayoutAssignment`), and the convolution
library writes images in the order batch, features, space, in 16 bits features last. Matmuls write
summands in the order wanted.
"""

from collections.abc import Collection, Sequence

from kiwi.hlo.program import Equation
from kiwi.kernels.matrix_operands import CONVOLUTION
from kiwi.targets.rule import Rule, stating

_FEATURES_LAST_BYTES = 2
"""Up to this size of an element the convolution library writes the features last."""


def sums_elsewhere(root: Equation, cuts: Sequence[int], scattered: Collection[int]) -> bool:
    """Whether the sums are scattered along another dimension than the most major one."""
    if root.name != CONVOLUTION:
        return False
    result = root.jaxpr_eqn.outvars[0].aval
    batch, features, *space = root.jaxpr_eqn.params["dimension_numbers"].out_spec
    order = (batch, features, *space)
    if result.dtype.itemsize <= _FEATURES_LAST_BYTES:
        order = (batch, *space, features)
    longer = [d for d in order if result.shape[d] > cuts[d]]
    return bool(longer) and any(d != longer[0] for d in scattered)


RULE = Rule(
    name="gpu_convolution_sums",
    does="Partial sums of a convolution that are scattered along another dimension than the most "
    "major one are transposed to another buffer first.",
    component="GpuLayoutAssignment, cuDNN",
    observed="jax 0.10.2, H100",
    evidence=("tests/xla/gpu/test_compiler.py",),
    states=stating(sums_elsewhere=sums_elsewhere),
)
