"""A traced call with the pytree structures of its arguments and result."""

from dataclasses import dataclass
from typing import Any

import jax

from kiwi.calls.signature import Call
from kiwi.hlo.units import UnitGraph


@dataclass(frozen=True, eq=False)
class ArgumentTrees:
    """Pytree structure of a planned function's arguments and result.

    `paths` name the argument leaves; `out_tree` is the result's structure; `name` the function's.
    """

    in_tree: Any
    out_tree: Any
    paths: tuple[str, ...]
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    donated: tuple[int, ...]
    name: str = ""


@dataclass(frozen=True, eq=False)
class Traced:
    """A call, traced, with its result's structure and the units of its program.

    `seconds` is the time that tracing and lowering took.
    """

    call: Call
    out_tree: Any
    units: UnitGraph
    seconds: float

    @property
    def trees(self) -> ArgumentTrees:
        """Structure of arguments and result, for the plan."""
        c = self.call
        return ArgumentTrees(c.tree, self.out_tree, c.paths, c.shapes, c.donated, c.name)
