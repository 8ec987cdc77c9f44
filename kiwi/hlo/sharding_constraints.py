"""`jax.lax.with_sharding_constraint` in the user's function.

A constraint computes nothing. So Kiwi makes it a property of its operand (`Program.constraints`).
The constraint stays an equation if it may reshard: if its operand is an argument, or has another
constraint already.
"""

from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

CONSTRAINT_PRIMITIVE = "sharding_constraint"


def is_constraint(eqn: Any) -> bool:
    """Whether a traced equation only constrains its operand to mesh axes.

    A constraint with another memory kind than the device's also moves its operand.
    """
    if eqn.primitive.name != CONSTRAINT_PRIMITIVE or eqn.params["layout"] is not None:
        return False
    sharding = eqn.params["sharding"]
    return isinstance(sharding, NamedSharding) and sharding.memory_kind in (None, "device")


def constraint_spec(eqn: Any) -> PartitionSpec:
    """Returns the spec of a constraint, with an entry for each dimension. The entry is
    `UNCONSTRAINED` for a dimension that the constraint leaves open."""
    (operand,), spec = eqn.invars, eqn.params["sharding"].spec
    entries = [*spec, *[None] * (len(operand.aval.shape) - len(spec))]
    for dim in eqn.params["unconstrained_dims"]:
        entries[dim] = PartitionSpec.UNCONSTRAINED
    return PartitionSpec(*entries)
