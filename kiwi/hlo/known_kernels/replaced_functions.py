"""Temporarily replaces functions, given by name, wherever they are called.

Code that has imported a function holds the function, not its name in the module. So a plain
function, also one under `jax.jit`, gets another code object, and an object of `jax.custom_vjp` or
`jax.custom_jvp` gets another class. The last thread that leaves the context manager undoes the
replacement. A replacement receives the original function.
"""

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

import jax

Replacement = Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""A function that is called instead of another one. Takes the other function's name, the original
function, and the positional and keyword arguments of the call."""

_LOCK = threading.RLock()
_NAME = "the name of the function"
_CUSTOM = (jax.custom_vjp, jax.custom_jvp)


class _Replaced:
    """A function that is currently replaced. `users`: the number of context managers that are
    active for the function."""

    def __init__(self, name: str, found: Any, by: Replacement) -> None:
        self.by = by
        self.users = 0
        self._found = found
        self._kept: Any = None
        if isinstance(found, _CUSTOM):
            self._kept = type(found)
            call = functools.partial(self._kept.__call__, found)
            self.original: Callable[..., Any] = functools.update_wrapper(call, found)
            found.__class__ = _class_of(self._kept, name)
        else:
            self._kept = found.__code__
            self.original = _copy(found)
            found.__code__ = _code(name, self._kept)

    def undo(self) -> None:
        if isinstance(self._found, _CUSTOM):
            self._found.__class__ = self._kept
        else:
            self._found.__code__ = self._kept


_REPLACED: dict[str, _Replaced] = {}


@contextlib.contextmanager
def replaced(functions: Mapping[str, Replacement]) -> Iterator[None]:
    """Inside this context manager, functions are replaced.

    - `functions`: by module and qualified name of a function, its replacement. Functions of modules
      that are not imported cannot be called, and are left out. If a function has several names, the
      first one counts. A function that is already replaced keeps its replacement.
    """
    used = []
    with _LOCK:
        for name, by in functions.items():
            if name not in _REPLACED and (function := _function(name)) is not None:
                _REPLACED[name] = _Replaced(name, function, by)
            if name in _REPLACED:
                _REPLACED[name].users += 1
                used.append(name)
    try:
        yield
    finally:
        with _LOCK:
            for name in reversed(used):
                _REPLACED[name].users -= 1
                if not _REPLACED[name].users:
                    _REPLACED.pop(name).undo()


def _function(name: str) -> Any:
    """Returns the replaceable object of a name: a plain function, or an object of `jax.custom_vjp`
    or `jax.custom_jvp`. Wrappers such as `jax.jit` are removed. None if there is no such object."""
    parts = name.split(".")
    lengths = range(len(parts) - 1, 0, -1)
    length = next((n for n in lengths if ".".join(parts[:n]) in sys.modules), None)
    if length is None:
        return None
    candidate: Any = sys.modules[".".join(parts[:length])]
    for part in parts[length:]:
        candidate = getattr(candidate, part, None)
    while candidate is not None and not isinstance(candidate, (FunctionType, *_CUSTOM)):
        candidate = getattr(candidate, "__wrapped__", None)
    return candidate


def _copy(function: FunctionType) -> Callable[..., Any]:
    """Returns a copy of a function with the present code."""
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls the replacement of a function, and returns its result."""
    with _LOCK:
        entry = _REPLACED[name]
    return entry.by(name, entry.original, args, kwargs)


def _stand_in(*args: Any, **kwargs: Any) -> Any:
    # The code runs with the globals of the replaced function's module, so it imports what it needs.
    from kiwi.hlo.known_kernels import replaced_functions

    return replaced_functions._call("the name of the function", args, kwargs)


def _code(name: str, original: CodeType) -> CodeType:
    """Returns a code object that calls the replacement of the function `name`. It has the free
    variables of the original code, as a function's code must."""
    code = _stand_in.__code__
    constants = tuple(name if constant == _NAME else constant for constant in code.co_consts)
    return code.replace(co_consts=constants, co_freevars=original.co_freevars)


@functools.cache
def _class_of(kept: type, name: str) -> type:
    """Returns a subclass of `kept` whose objects call the replacement of the function `name`."""
    return type(
        kept.__name__,
        (kept,),
        {"__call__": lambda self, *args, **kwargs: _call(name, args, kwargs)},
    )
