"""On TPUs each reader computes a sum of tensors that are much smaller than it.

A product of vectors, as the outer sum of two biases, takes less to compute than to read.
"""

from kiwi.hlo.chains import Chains
from kiwi.targets.rule import Rule, fusing

_MOST_READ = 0.5
"""The part of the sum's bytes that its operands take at most."""


def sums_small_tensors(chains: Chains, index: int) -> bool:
    """Whether an equation makes a tensor of others that are much smaller."""
    return chains.is_as_small(index, _MOST_READ)


RULE = Rule(
    name="products_of_vectors",
    does="All readers of a sum whose operands take at most half of its bytes compute it for "
    "themselves.",
    component="fusion of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("benchmarks/fidelity",),
    states=fusing(sums_in_readers=(sums_small_tensors,)),
)
