"""Tracing of functions under rules of logical axes."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from kiwi.hlo import jax_internals
from kiwi.plans.export.partition_specs import MeshAxes


@contextlib.contextmanager
def under_rules(rules: Sequence[tuple[str, MeshAxes]]) -> Iterator[None]:
    """A context manager in which Flax's logical axes have these rules. It does nothing if the
    process has not imported Flax: no value then has logical axes."""
    entered: AbstractContextManager[Any] = contextlib.nullcontext()
    spmd = sys.modules.get("flax.core.spmd")
    if rules and spmd is not None:
        entered = spmd.logical_axis_rules(tuple(rules))
    # JAX traces a function again that it has traced under other rules.
    with entered, jax_internals.traced_apart(("rules", tuple(rules))):
        yield
