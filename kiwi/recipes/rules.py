"""Functions traced under rules of logical axes."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from kiwi.hlo import jax_internals
from kiwi.plans.export.partition_specs import MeshAxes


@contextlib.contextmanager
def under_rules(rules: Sequence[tuple[str, MeshAxes]]) -> Iterator[None]:
    """Inside this context manager, logical axes of Flax have these rules. Without Flax in the
    process nothing has logical axes."""
    entered: AbstractContextManager[Any] = contextlib.nullcontext()
    spmd = sys.modules.get("flax.core.spmd")
    if rules and spmd is not None:
        entered = spmd.logical_axis_rules(tuple(rules))
    # A function that jax has traced under other rules is traced anew.
    with entered, jax_internals.traced_apart(("rules", tuple(rules))):
        yield
