"""Functions that are temporarily replaced, by name, wherever they are called.

Code that has imported a function holds the function, not its name in the module. So the code object
of a plain function, or of the one under `jax.jit`, is exchanged, and an object of `jax.custom_vjp`
or `jax.custom_jvp` gets a class of its own. All of it is undone when the last of several threads
leaves. The replacement is given the original.
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
"""The function that is called instead, with the function's name, the original, and the arguments of
the call."""

_LOCK = threading.RLock()
_NAME = "the name of the function"
_CUSTOM = (jax.custom_vjp, jax.custom_jvp)


class _Replaced:
    """One function that is currently replaced."""

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
    """Inside this context manager, functions are replaced, given by module and qualified name.

    Functions of modules that are not imported cannot be called, and are left out. If several names
    mean one function, the first counts.
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
    """The replaceable object of this name: a plain function, or an object of `jax.custom_vjp` or
    `jax.custom_jvp`; None if there is none."""
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
    """The function with its present code."""
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
    """Calls the replacement of a function."""
    with _LOCK:
        entry = _REPLACED[name]
    return entry.by(name, entry.original, args, kwargs)


def _stand_in(*args: Any, **kwargs: Any) -> Any:
    # Runs with the names of whichever module the function is from.
    from kiwi.hlo.known_kernels import replaced_functions

    return replaced_functions._call("the name of the function", args, kwargs)


def _code(name: str, original: CodeType) -> CodeType:
    """Code that calls what takes the function's place, in a function with its free variables."""
    code = _stand_in.__code__
    constants = tuple(name if constant == _NAME else constant for constant in code.co_consts)
    return code.replace(co_consts=constants, co_freevars=original.co_freevars)


@functools.cache
def _class_of(kept: type, name: str) -> type:
    """A class of objects whose call is replaced."""
    return type(
        kept.__name__,
        (kept,),
        {"__call__": lambda self, *args, **kwargs: _call(name, args, kwargs)},
    )
