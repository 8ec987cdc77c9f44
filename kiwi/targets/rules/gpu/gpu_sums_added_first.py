"""XLA:GPU adds partial sums on each device before the devices exchange them.

`AllReduceReassociate` rewrites an addition of two all-reduces as the all-reduce of one addition.
The gradients of a parameter that a step uses several times are then exchanged once.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

from kiwi.targets.rule import Rule, stating
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_WIDTH, _ROWS, _USES = 512, 4096, 3


def _used_often(*operands: jax.Array) -> jax.Array:
    """Returns the gradient of a matrix that three products use. The gradient of each product is a
    partial sum on each device."""
    total = operands[0].T @ operands[1]
    for x, y in zip(operands[2::2], operands[3::2], strict=True):
        total = total + x.T @ y
    return total


def _used_apart(*operands: jax.Array) -> tuple[jax.Array, ...]:
    """Returns the same products as separate results."""
    return tuple(x.T @ y for x, y in zip(operands[::2], operands[1::2], strict=True))


def _example(function: Callable[..., Any], out_specs: Any) -> Example:
    rows = (array(_ROWS, _WIDTH),) * (2 * _USES)
    return Example(function, rows, (8,), (P("x"),) * len(rows), out_specs)


def _is_exchanged_once(module: InspectedModule) -> bool:
    sums = module.collectives["all-reduce"]
    return sums.bytes == 4 * _WIDTH * _WIDTH


WITNESS = Witness(
    says="Three partial sums of 1 MiB that are added up are exchanged as one.",
    example=_example(_used_often, P()),
    shows=_is_exchanged_once,
    control=_example(_used_apart, (P(),) * _USES),
)

RULE = Rule(
    name="gpu_sums_added_first",
    does="Partial sums that are only added to each other are added on each device first, and "
    "exchanged once.",
    component="AllReduceReassociate",
    observed="jax 0.10.2, H100: 44 reductions of a PINN become one, 384 of a neural ODE 32",
    evidence=("benchmarks/field", "tests/targets/test_joined_sums.py"),
    witness=WITNESS,
    states=stating(adds_sums_first=True),
    limits="Of a sum that is scattered along one axis and all-reduced along another one, only the "
    "latter is.",
)
