"""Policies of `jax.checkpoint` by names, which `jax.ad_checkpoint.checkpoint_name` gives to values.

A policy by names gives each name one residency for all layers: "device" saves the values,
"offload" saves them in host memory, "remat" recomputes them. Values without a name are recomputed.
Frameworks whose training recipes name tensors have policies of this form.
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
"""The residencies that a name can have."""

NAME = "name"
"""The name of the primitive that `checkpoint_name` binds."""


def check_residencies(residencies: Mapping[str, str]) -> None:
    """Checks the residencies of names.

    **Raises:** `InvalidArgumentError` if a residency is not one of `RESIDENCIES`.
    """
    for name, residency in residencies.items():
        if residency not in RESIDENCIES:
            raise InvalidArgumentError(
                f"The residency {residency!r} of the name {name!r} is none of "
                f"{', '.join(RESIDENCIES)}.",
                topic=topics.UNKNOWN_RESIDENCY,
            )


def policy_by_names(residencies: Mapping[str, str]) -> Any:
    """Returns the policy of `jax.checkpoint` that gives each name its residency.

    Other names are recomputed. A policy that saves nothing is None: `jax.checkpoint` recomputes
    everything without a policy.

    **Raises:** `InvalidArgumentError` if a residency is not one of `RESIDENCIES`.
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
    """Returns the names in a jaxpr and in all jaxprs inside of it, each once, in order of first
    appearance. The jaxpr may be closed."""
    return tuple(dict.fromkeys(_names(getattr(jaxpr, "jaxpr", jaxpr))))


def _names(jaxpr: Any) -> Iterator[str]:
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == NAME:
            yield eqn.params["name"]
        for inner in jex.jaxprs_in_params(eqn.params):
            yield from _names(inner)


@contextlib.contextmanager
def residencies_replaced(residencies: Mapping[str, str]) -> Iterator[list[str]]:
    """Inside this context manager, each `jax.checkpoint` whose function contains names gets the
    policy of these residencies.

    A `jax.checkpoint` without names keeps its own policy. The yielded list receives all names that
    are traced inside of a `jax.checkpoint`.

    **Raises:** `InvalidArgumentError` if a residency is not one of `RESIDENCIES`.
    """
    seen_names: list[str] = []
    policy = policy_by_names(residencies)

    def policy_of(jaxpr: Any, own: Any) -> Any:
        names = names_in(jaxpr)
        seen_names.extend(name for name in names if name not in seen_names)
        return policy if names else own

    # Each context has a key of its own: jax would not trace a cached function again, and its names
    # would be missing in the list.
    apart = jax_internals.traced_apart(object())
    with apart, jax_internals.checkpoint_policies_replaced(policy_of):
        yield seen_names


@contextlib.contextmanager
def checkpoints_left_out() -> Iterator[None]:
    """Inside this context manager, each `jax.checkpoint` is traced as its function.

    A plan that recomputes by its own choice is better made of such a step: a kernel with a
    `custom_vjp` inside `jax.checkpoint` otherwise runs twice, because its second call has other
    results than its first.
    """
    with jax_internals.traced_apart("no checkpoints"), jax_internals.checkpoints_left_out():
        yield
