"""Names of values by `jax.ad_checkpoint.checkpoint_name`, and policies of `jax.checkpoint` by them.

A policy by names gives each name one residency for all layers: "device" saves the values,
"offload" saves them in the host's memory, "remat" recomputes them. Values without a name are
recomputed. So do the policies of frameworks whose recipes name tensors.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.extend import core as jex

from kiwi.errors import InvalidArgumentError
from kiwi.hlo import jax_internals
from kiwi.messages import topics

DEVICE, REMAT, OFFLOAD = RESIDENCIES = ("device", "remat", "offload")
"""The residencies of a name."""

NAME = "name"
"""The primitive of `checkpoint_name`."""


def check_residencies(residencies: Mapping[str, str]) -> None:
    """Raises `InvalidArgumentError` for a residency that there is not."""
    for name, residency in residencies.items():
        if residency not in RESIDENCIES:
            raise InvalidArgumentError(
                f"The residency {residency!r} of the name {name!r} is none of "
                f"{', '.join(RESIDENCIES)}.",
                topic=topics.UNKNOWN_RESIDENCY,
            )


def policy_by_names(residencies: Mapping[str, str]) -> Any:
    """The policy of `jax.checkpoint` that gives names their residencies.

    Names without one are recomputed. A policy that saves nothing is None, which is what
    `jax.checkpoint` has without a policy.
    """
    check_residencies(residencies)
    on_device = [name for name, residency in residencies.items() if residency == DEVICE]
    on_host = [name for name, residency in residencies.items() if residency == OFFLOAD]
    if on_host:
        return jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=on_device,
            names_which_can_be_offloaded=on_host,
            offload_src="device",
            offload_dst="pinned_host",
        )
    return jax.checkpoint_policies.save_only_these_names(*on_device) if on_device else None


def names_in(jaxpr: Any) -> tuple[str, ...]:
    """The names in a jaxpr and in all jaxprs inside of it, in order of appearance."""
    return tuple(dict.fromkeys(_names(getattr(jaxpr, "jaxpr", jaxpr))))


def _names(jaxpr: Any) -> Iterator[str]:
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == NAME:
            yield eqn.params["name"]
        for inner in jex.jaxprs_in_params(eqn.params):
            yield from _names(inner)


@contextlib.contextmanager
def residencies_replaced(residencies: Mapping[str, str]) -> Iterator[list[str]]:
    """Inside this context manager, each `jax.checkpoint` around names gets the policy of these
    residencies.

    A `jax.checkpoint` around no name keeps its own policy. The list gets the names of all others.
    """
    seen_names: list[str] = []
    policy = policy_by_names(residencies)

    def policy_of(jaxpr: Any, own: Any) -> Any:
        names = names_in(jaxpr)
        seen_names.extend(name for name in names if name not in seen_names)
        return policy if names else own

    # No key is used twice: a cached trace would hide its names.
    apart = jax_internals.traced_apart(object())
    with apart, jax_internals.checkpoint_policies_replaced(policy_of):
        yield seen_names
