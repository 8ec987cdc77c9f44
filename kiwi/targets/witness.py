"""`Witness`: a small program whose compiled module shows that a rule holds.

After an upgrade of jax, `pytest -m witness` compiles the witnesses of all rules and names the rules
whose modules no longer show the claim. Each witness has a control: a similar program whose module
must not show the claim. The control reveals a check that accepts any module.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax
from jax.sharding import PartitionSpec

from kiwi.xla.read.inspected import InspectedModule

Shows = Callable[[InspectedModule], bool]
"""Returns whether a compiled module shows the claim of a rule."""


def array(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    """Returns the shape and dtype of an argument of an example."""
    return jax.ShapeDtypeStruct(shape, dtype)


def convolved(images: jax.Array, kernel: jax.Array) -> jax.Array:
    """Returns images [batch, height, width, features], padded and convolved with a kernel [height,
    width, features, results], with stride 1."""
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=numbers)


@dataclass(frozen=True, eq=False)
class Example:
    """A small function of arrays, and how it is compiled.

    - `function`: the function. It returns an array or a tuple of arrays.
    - `arguments`: the shapes of the arguments, just large enough for the rule to apply.
    - `mesh_shape`: the shape of the device mesh, with axes "x", "y", "z".
    - `in_specs`: the `PartitionSpec` of each argument; empty if all are replicated.
    - `out_specs`: the `PartitionSpec` of the result, or of each result; None lets XLA choose.
    - `donated`: the positions of donated arguments.
    - `way`: the index into `Compiler.overlapping_options`; None for the options of a check.
    - `generates_code`: whether the module's text is read after code generation. Only then does it
      state cycles.
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

    - `says`: the claim about the module, in a sentence.
    - `example`: the program.
    - `shows`: tells whether a module shows the claim.
    - `control`: a similar program whose module must not show the claim.
    """

    says: str
    example: Example
    shows: Shows
    control: Example


@dataclass(frozen=True)
class NotShown:
    """Stands for the witness of a rule whose claim no compiled module can show.

    - `reason`: why there is no witness, in a sentence or two.
    """

    reason: str
