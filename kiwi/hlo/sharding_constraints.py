"""`jax.lax.with_sharding_constraint` in the user's function.

A constraint computes nothing, so Kiwi takes it for a property of its operand
(`Program.constraints`). It stays an equation where it may reshard: its operand is an argument, or
has another constraint already.
"""

from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

CONSTRAINT_PRIMITIVE = "sharding_constraint"


def is_constraint(eqn: Any) -> bool:
    """Whether a traced equation only constrains its operand by a mesh's axes.

    A constraint with a memory kind moves its operand, too.
    """
    if eqn.primitive.name != CONSTRAINT_PRIMITIVE or eqn.params["layout"] is not None:
        return False
    sharding = eqn.params["sharding"]
    return isinstance(sharding, NamedSharding) and sharding.memory_kind in (None, "device")


def constraint_spec(eqn: Any) -> PartitionSpec:
    """The spec of a constraint, with `UNCONSTRAINED` for the dimensions that it leaves open."""
    (operand,), spec = eqn.invars, eqn.params["sharding"].spec
    entries = [*spec, *[None] * (len(operand.aval.shape) - len(spec))]
    for dim in eqn.params["unconstrained_dims"]:
        entries[dim] = PartitionSpec.UNCONSTRAINED
    return PartitionSpec(*entries)
