"""`kiwi.hint`: pins the layout or the residency of a value inside the user's function.

A hint is an identity with a primitive of its own, so that the jaxpr contains the hint. It lowers to
nothing: a program compiles to the same instructions with and without its hints.

1. A hint does not pin the cotangent of its value. A hint on the gradient does.
2. `jax.vmap` leaves the new dimension open, and the hint pins the others.
3. Tracing removes the hint from the program and records it at the value (`Program.hints`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.extend import core as jex
from jax.extend import source_info_util
from jax.interpreters import ad, batching, mlir
from jax.sharding import PartitionSpec

from kiwi.errors import InvalidArgumentError
from kiwi.messages import topics

HINT_PRIMITIVE = "kiwi_hint"


@dataclass(frozen=True)
class Hint:
    """The arguments of one call of `hint`, apart from the array."""

    sharding: PartitionSpec | None = None
    keep: bool = False
    recompute: bool = False
    name: str | None = None
    offload: bool | None = None

    @property
    def pins(self) -> bool:
        """Whether the hint restricts a plan. A name alone does not."""
        has_residency = self.keep or self.recompute or self.offload is not None
        return self.sharding is not None or has_residency


@dataclass(frozen=True)
class PlacedHint:
    """A hint and its line in the user's code."""

    hint: Hint
    source_line: str

    @property
    def label(self) -> str:
        """The text that stands for the hint in notes and errors: its name and its source line."""
        name = f" {self.hint.name!r}" if self.hint.name else ""
        line = f" at {self.source_line}" if self.source_line else ""
        return f"hint{name}{line}"


def hint(
    x: Any,
    *,
    sharding: PartitionSpec | None = None,
    keep: bool = False,
    recompute: bool = False,
    name: str | None = None,
    offload: bool | None = None,
) -> Any:
    """Returns `x`, and tells Kiwi how a plan has to treat each array of `x`.

    A hint works with and without Kiwi, under `jax.jit`, `jax.grad`, `jax.vmap` and `jax.lax.scan`.
    It costs nothing in the compiled program.

    - `x`: an array or a pytree of arrays.
    - `sharding`: the sharding of the array. `PartitionSpec.UNCONSTRAINED` leaves a dimension open.
    - `keep`: the plan keeps the array for the backward pass.
    - `recompute`: the plan drops the array after the forward pass and recomputes it.
    - `name`: the hint's name in notes and errors.
    - `offload`: if True, the plan copies the array to host memory and fetches it back, provided
      that there is a budget for this (`host_memory_budget`). If False, the plan does not offload
      the array. None leaves the choice to the plan.

    **Raises:** `InvalidArgumentError` if `sharding` is no `PartitionSpec` or has more entries than
    an array has dimensions, or if more than one of `keep`, `recompute` and `offload` is asked for.
    """
    requested = {"keep a value": keep, "recompute it": recompute, "offload it": bool(offload)}
    if sum(requested.values()) > 1:
        requests = " and to ".join(what for what, is_asked in requested.items() if is_asked)
        raise InvalidArgumentError(
            f"The hint{f' {name!r}' if name else ''} asks to {requests}.",
            topic=topics.HINT_TWICE,
        )
    if sharding is not None and not isinstance(sharding, PartitionSpec):
        raise InvalidArgumentError(
            f"The sharding {sharding!r} of a hint is no PartitionSpec.",
            topic=topics.NOT_A_SHARDING,
            suggestion='For example jax.sharding.PartitionSpec("x", None).',
        )
    new_hint = Hint(sharding, keep, recompute, name, offload)
    return jax.tree.map(lambda leaf: _hinted(leaf, new_hint), x)


def _hinted(leaf: Any, given: Hint) -> Any:
    rank = jax.typeof(leaf).ndim
    if given.sharding is not None and len(given.sharding) > rank:
        raise InvalidArgumentError(
            f"The hint's sharding {given.sharding} has {len(given.sharding)} entries, the array "
            f"has {rank} dimensions.",
            topic=topics.TOO_MANY_ENTRIES,
            suggestion=f"Give at most {rank} entries.",
        )
    return _hint_primitive.bind(leaf, hint=given)


def _batched(operands: Sequence[Any], dims: Sequence[Any], *, hint: Hint) -> tuple[Any, Any]:
    (operand,), (dim,) = operands, dims
    return _hint_primitive.bind(operand, hint=_with_open_dimension(hint, dim)), dim


def _with_open_dimension(given: Hint, dim: int) -> Hint:
    if given.sharding is None:
        return given
    entries = [*given.sharding]
    entries += [None] * (dim - len(entries))
    entries.insert(dim, PartitionSpec.UNCONSTRAINED)
    return replace(given, sharding=PartitionSpec(*entries))


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, hint: Hint) -> tuple[Any, Any]:
    return _hint_primitive.bind(primals[0], hint=hint), tangents[0]


# The source line of a hint is the user's call of `hint`, not a line of this file.
source_info_util.register_exclusion(__file__)

_hint_primitive = jex.Primitive(HINT_PRIMITIVE)
_hint_primitive.def_impl(lambda x, hint: x)
_hint_primitive.def_abstract_eval(lambda x, hint: x)
ad.primitive_jvps[_hint_primitive] = _jvp
batching.primitive_batchers[_hint_primitive] = _batched
mlir.register_lowering(_hint_primitive, lambda ctx, x, hint: [x])
