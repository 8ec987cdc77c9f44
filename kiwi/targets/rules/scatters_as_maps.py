"""XLA:TPU computes a scatter that sets one element of each row as a map of the positions."""

from kiwi.hlo.chains import Chains
from kiwi.hlo.equation_kinds import sets_one_per_row
from kiwi.targets.rule import Rule, fusing


def is_comparison(chains: Chains, index: int) -> bool:
    """Whether an equation is such a scatter, as the gradient of `take_along_axis` is."""
    return sets_one_per_row(chains.graph.program.equations[index])


RULE = Rule(
    name="scatters_as_maps",
    does="A scatter that sets one element of each row compares positions, and is fused as a map "
    "is.",
    component="ScatterExpander and fusion of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("tests/hlo/test_fusion.py",),
    states=fusing(maps=(is_comparison,)),
)
