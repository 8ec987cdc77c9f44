"""A step of three layers, in which the middle layer can be recomputed."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from kiwi.hlo.graph import Phase
from kiwi.hlo.units import Unit, UnitGraph
from tests.helpers.planning import array

W, X = array(16, 16), array(8, 16)


def loss(w: Any, x: Any) -> Any:
    """A loss whose middle layer can be recomputed from the first one, or as part of a chain."""
    for _ in range(3):
        x = jnp.tanh(x @ w)
    return (x * x).sum()


def forward_tanhs(units: UnitGraph) -> Sequence[Unit]:
    """Returns the units of the layers in the forward pass."""
    names = [e.name for e in units.graph.program.equations]
    return [u for u in units.units if names[u.root] == "tanh" and u.phase is Phase.FORWARD]
