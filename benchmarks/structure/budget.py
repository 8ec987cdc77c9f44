"""The way of the memory budget through `kiwi`, recorded while `kiwi.jit` plans a small step.

A call passes the budget if one of its arguments has a name of the budget (`NAMES`), or is an object
with such a field (`Settings`, a `Problem`, a `Plan`), or an object with a field that holds such an
object. The sender is the nearest caller in `kiwi`; numpy, jax and functools between the two are
skipped. A callback that gets the budget counts as a call upward.
"""

import dataclasses
import functools
import inspect
import sys
import typing
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp

import kiwi
from kiwi.solver import warm_up

NAMES = ("memory_budget", "memory_budget_bytes", "budget_bytes", "limit_bytes")
DEPTH, WIDTH, ROWS = 4, 128, 512
BUDGET = "1200KB"

Passes = Counter[tuple[str, str]]
"""The number of times that one module passes the budget to another."""


def record() -> Passes:
    """Plans a step that must recompute, and records every call that passes the budget."""
    passes: Passes = Counter()

    def on_event(frame: FrameType, event: str, _: Any) -> None:
        receiver = _module(frame)
        if event == "call" and _is_ours(receiver) and _carries_budget(frame):
            sender = _sender(frame)
            if sender is not None and sender != receiver:
                passes[sender, receiver] += 1

    warm_up()  # Compiles the solver's loops, which calls the solver on another problem.
    function, arguments = _step()
    sys.setprofile(on_event)
    try:
        options = {"mesh_shape": (2,), "memory_budget": BUDGET, "profile": "cpu"}
        kiwi.jit(function, **options).plan(*arguments)
    finally:
        sys.setprofile(None)
    return passes


def _step() -> tuple[Any, tuple[Any, ...]]:
    """Returns the gradient of some layers, and the types of its arguments."""

    def loss(weights: Any, x: Any) -> Any:
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return jnp.mean(x**2)

    weights = [jax.ShapeDtypeStruct((WIDTH, WIDTH), "float32")] * DEPTH
    return jax.value_and_grad(loss), (weights, jax.ShapeDtypeStruct((ROWS, WIDTH), "float32"))


def _is_ours(module: str) -> bool:
    return module.startswith("kiwi.")


def _sender(frame: FrameType) -> str | None:
    """Returns the caller's module. Decorators that pass all arguments on are skipped."""
    caller = frame.f_back
    while caller is not None and (_is_wrapper(caller) or not _is_ours(_module(caller))):
        caller = caller.f_back
    return None if caller is None else _module(caller)


def _module(frame: FrameType) -> str:
    """Returns the module of a function. For a method, returns the module of the object's class,
    even if the method is inherited."""
    defined = frame.f_globals.get("__name__", "")
    if not _is_ours(defined) or frame.f_code.co_varnames[:1] != ("self",):
        return defined
    class_module = type(frame.f_locals.get("self")).__module__
    return class_module if _is_ours(class_module) else defined


def _is_wrapper(frame: FrameType) -> bool:
    code, star_flags = frame.f_code, inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
    return code.co_flags & star_flags == star_flags and not code.co_argcount


def _carries_budget(frame: FrameType) -> bool:
    return any(
        value is not None and (name in NAMES or _has_budget(type(value)))
        for name, value in _arguments(frame)
    )


def _arguments(frame: FrameType) -> Iterator[tuple[str, Any]]:
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    for name in code.co_varnames[:count]:
        yield name, frame.f_locals.get(name)


@functools.cache
def _has_budget(kind: type) -> bool:
    """Returns whether objects of a type have the budget in a field, or an object with the
    budget."""
    if not dataclasses.is_dataclass(kind):
        return False
    hints = _hints(kind)
    inner = [part for hint in hints for part in (hint, *typing.get_args(hint))]
    return _is_holder(kind) or any(_is_holder(part) for part in inner)


def _hints(kind: type) -> list[Any]:
    """Returns the types of the fields; none if an alias names a class of the alias's own module."""
    try:
        return list(typing.get_type_hints(kind).values())
    except NameError:
        return []


def _is_holder(kind: Any) -> bool:
    if not dataclasses.is_dataclass(kind):
        return False
    return any(field.name in NAMES for field in dataclasses.fields(kind))
