"""XLA:TPU does not let a collective write its result to the buffer of a donated argument.

If the result takes over the buffer of the argument, both the argument and the result are copied.
"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from kiwi.targets.rule import Rule, stating
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_WIDTH = 1024


def _updated(p: jax.Array, m: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    gradient = jax.grad(lambda w: jnp.mean(jnp.sin(x @ w)))(p)
    moment = 0.9 * m + gradient
    return p - 0.1 * moment, moment


def _data_parallel(parameter: P) -> Example:
    """Returns an update whose moment is cut over the devices. With a replicated `parameter`, the
    updated parameter is gathered."""
    return Example(
        _updated,
        (array(_WIDTH, _WIDTH), array(_WIDTH, _WIDTH), array(8192, _WIDTH)),
        (8,),
        (parameter, P("x"), P("x")),
        (parameter, P("x")),
        donated=(0, 1),
    )


def _copies_argument(module: InspectedModule) -> bool:
    copies = [kernel for kernel in module.with_opcodes("copy") if kernel.writes(_WIDTH**2)]
    return len(copies) == 2 and "all-gather" in module.collectives


WITNESS = Witness(
    says="The donated parameter is copied, and the gathered one to its place.",
    example=_data_parallel(P()),
    shows=_copies_argument,
    control=_data_parallel(P("x")),
)

RULE = Rule(
    name="tpu_gathered_results",
    does="A collective does not write a result where the donated argument is that it takes over.",
    component="copy insertion of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e and v5p",
    evidence=("tests/xla/tpu/test_gathered_results.py",),
    witness=WITNESS,
    states=stating(copies_gathered_results=True),
)
