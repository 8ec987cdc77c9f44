"""The way of the memory budget through `kiwi`, recorded while `kiwi.jit` plans a small step.

A call passes the budget on if one of its arguments is called so (`NAMES`), or is an object with such
a field: `Settings`, a `Problem`, a `Plan`. The sender is the nearest caller in `kiwi`, over numpy,
jax and functools in between; a callback that gets the budget counts as a call upward.
"""

import dataclasses
import sys
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp

import kiwi

NAMES = ("memory_budget", "memory_budget_bytes", "budget_bytes", "limit_bytes")
DEPTH, WIDTH, ROWS = 4, 128, 512
BUDGET = "1200KB"

Passes = Counter[tuple[str, str]]
"""How often one module passes the budget to another."""


def record() -> Passes:
    """Plans a step that has to recompute, and records every call that passes the budget on."""
    passes: Passes = Counter()

    def on_event(frame: FrameType, event: str, _: Any) -> None:
        receiver = frame.f_globals.get("__name__", "")
        if event == "call" and _is_ours(receiver) and _carries_budget(frame):
            sender = _sender(frame)
            if sender is not None and sender != receiver:
                passes[sender, receiver] += 1

    function, arguments = _step()
    sys.setprofile(on_event)
    try:
        kiwi.jit(function, mesh_shape=(2,), memory_budget=BUDGET).plan(*arguments)
    finally:
        sys.setprofile(None)
    return passes


def _step() -> tuple[Any, tuple[Any, ...]]:
    """The gradient of some layers, and the types of its arguments."""

    def loss(weights: Any, x: Any) -> Any:
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return jnp.mean(x**2)

    weights = [jax.ShapeDtypeStruct((WIDTH, WIDTH), "float32")] * DEPTH
    return jax.value_and_grad(loss), (weights, jax.ShapeDtypeStruct((ROWS, WIDTH), "float32"))


def _is_ours(module: str) -> bool:
    return module.startswith("kiwi.")


def _sender(frame: FrameType) -> str | None:
    caller = frame.f_back
    while caller is not None and not _is_ours(caller.f_globals.get("__name__", "")):
        caller = caller.f_back
    return None if caller is None else caller.f_globals["__name__"]


def _carries_budget(frame: FrameType) -> bool:
    return any(
        value is not None and (name in NAMES or _has_field(value))
        for name, value in _arguments(frame)
    )


def _arguments(frame: FrameType) -> Iterator[tuple[str, Any]]:
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    for name in code.co_varnames[:count]:
        yield name, frame.f_locals.get(name)


def _has_field(value: Any) -> bool:
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return False
    return any(field.name in NAMES for field in dataclasses.fields(value))
