"""`Witness`: a small program whose compiled module shows that a rule holds.

After an upgrade of jax `pytest -m witness` compiles the witnesses of all rules, and names the rules
whose modules no longer show the claim. Each witness has a control: a program whose module must not
show it. So a check that accepts any module is detected.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import PartitionSpec

from kiwi.xla.read.inspected import InspectedModule

Shows = Callable[[InspectedModule], bool]
"""Whether a compiled module shows what a rule claims."""


def array(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    """An argument of an example."""
    return jax.ShapeDtypeStruct(shape, dtype)


@dataclass(frozen=True, eq=False)
class Example:
    """A small function of arrays, and how it is compiled.

    - `function`: returns an array, or a tuple of them.
    - `arguments`: large enough for the rule, and no larger.
    - `mesh_shape`: the shape of the devices, with axes "x", "y", "z".
    - `in_specs`: for each argument; empty if all are whole.
    - `out_specs`: for the result, or for each result; None lets XLA choose.
    - `donated`: positions of arguments.
    - `way`: the number of the overlapping options (`Compiler.overlapping_options`); None for the
      options of a check.
    - `generates_code`: whether the text is read after code generation, which states cycles.
    """

    function: Callable[..., Any]
    arguments: tuple[jax.ShapeDtypeStruct, ...]
    mesh_shape: tuple[int, ...] = (1,)
    in_specs: Sequence[PartitionSpec] = ()
    out_specs: Any = None
    donated: tuple[int, ...] = ()
    way: int | None = None
    generates_code: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Witness:
    """A small program whose compiled module shows a rule.

    - `says`: what the module must show, in a sentence.
    - `example`, `shows`: the program, and whether its module shows it.
    - `control`: a similar program whose module must not show it.
    """

    says: str
    example: Example
    shows: Shows
    control: Example


@dataclass(frozen=True)
class NotShown:
    """Why a rule has no witness: what it claims is in no compiled module.

    - `reason`: in a sentence or two.
    """

    reason: str
