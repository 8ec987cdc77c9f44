"""XLA:TPU makes random bits of a key by arithmetic, which is fused as any map is."""

from kiwi.hlo.chains import Chains
from kiwi.targets.rule import Rule, fusing


def is_random_map(chains: Chains, index: int) -> bool:
    """Whether an equation makes random bits, and does not ask the generator of the device."""
    is_random = chains.graph.program.equations[index].name == "random_bits"
    return is_random and "rng_bit_generator" not in chains.graph.opcodes[index]


RULE = Rule(
    name="random_bits_as_maps",
    does="Random bits of threefry keys are computed by all that read them.",
    component="fusion of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("tests/hlo/test_fusion.py",),
    states=fusing(maps=(is_random_map,)),
)
