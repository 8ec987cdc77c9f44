"""XLA:GPU and XLA:TPU compute a costly map again in each map and reduction that reads it.

They do so if the map's operands take no more bytes than its result, so that reading them again
costs no more than reading the result. XLA:CPU stores a costly map that several kernels read.
"""

from kiwi.hlo.chains import Chains
from kiwi.targets.rule import Rule, fusing


def reads_no_more(chains: Chains, index: int) -> bool:
    """Whether the operands of a chain take no more bytes than its result, vectors apart."""
    return chains.is_as_small(index)


RULE = Rule(
    name="maps_in_readers",
    does="A costly map is computed again in each map and reduction that reads it, if its operands "
    "take no more bytes than its result.",
    component="PriorityFusion (GPU), fusion of XLA:TPU",
    observed="jax 0.10.2, H100; libtpu 0.0.42.1, v5e",
    evidence=("tests/hlo/test_fusion.py", "benchmarks/fidelity"),
    states=fusing(in_readers=(reads_no_more,)),
)
