"""On GPUs each reader computes an addition of interleaved tensors, such as the halves of a scan.

`jax.lax.associative_scan` pads its two halves with zeros between the elements and adds them. The
kernels that read the sum compute it, whatever their number.
"""

from kiwi.hlo.chains import Chains
from kiwi.hlo.equation_kinds import interleaves
from kiwi.targets.rule import Rule, fusing


def sums_interleaved(chains: Chains, index: int) -> bool:
    """Whether an equation adds nothing but tensors with elements put between others."""
    program = chains.graph.program
    producers = [program.values[v].producer for v in program.equations[index].reads]
    return all(k is not None and interleaves(program.equations[k]) for k in producers)


RULE = Rule(
    name="interleaved_sums",
    does="All readers of a sum of interleaved tensors compute it for themselves.",
    component="PriorityFusion",
    observed="jax 0.10.2, H100",
    evidence=("tests/hlo/test_fusion.py",),
    states=fusing(sums_in_readers=(sums_interleaved,)),
)
