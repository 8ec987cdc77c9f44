"""XLA:CPU's scheduler does not keep memory low.

Its order needs more memory than the plan's, so that plans for XLA:CPU have a barrier at every step.
Other compilers' schedulers keep memory low, and plans for them begin with only the barriers that
they need.
"""

import jax
import jax.numpy as jnp

from kiwi.targets.rule import Rule, stating
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_WIDTH, _COUNT = 256, 6


def _sums(x: jax.Array, *weights: jax.Array) -> jax.Array:
    """Returns the sum of several products. A program could reduce each product before it computes
    the next one."""
    products = [x @ w for w in weights]
    return sum((y.sum(0) for y in products), jnp.zeros(_WIDTH))


def _holds_all(module: InspectedModule) -> bool:
    return module.temporaries_of(4 * _WIDTH**2) == _COUNT


WITNESS = Witness(
    says="All six products are held at the same time, where one after the other would do.",
    example=Example(_sums, (array(_WIDTH, _WIDTH),) * (1 + _COUNT)),
    shows=_holds_all,
    control=Example(lambda x, w: _sums(x, w), (array(_WIDTH, _WIDTH),) * 2),
)


RULE = Rule(
    name="cpu_schedule",
    does="The scheduler does not keep memory low.",
    component="scheduler of XLA:CPU",
    observed="jax 0.10.2",
    evidence=("benchmarks/fidelity",),
    witness=WITNESS,
    states=stating(schedules_for_memory=False),
)
