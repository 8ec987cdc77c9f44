"""Empty modules that stand in for packages that a framework imports and a training step never
calls.

A module has every attribute: a class without members, whose attributes are such classes again. An
installed package is imported as usual.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterable, Sequence
from typing import Any


def install(names: Iterable[str]) -> tuple[str, ...]:
    """Installs empty modules for the packages among `names` that are not installed, and returns the
    names of these packages.

    The modules stay until the process ends, because frameworks import some modules late.
    """
    missing = tuple(name for name in names if _is_missing(name))
    if missing:
        sys.meta_path.append(_Finder(missing))
    return missing


def _is_missing(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is None
    except (ImportError, ValueError):
        return True


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in self._names:
            return None
        return importlib.machinery.ModuleSpec(fullname, _Loader(), is_package=True)


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _Module(types.ModuleType):
    __version__ = "0"

    def __getattr__(self, name: str) -> Any:
        return _attribute(name)


class _Empty(type):
    """The type of a class that stands in. Its attributes stand in as well, and the class can be
    part of an annotation."""

    def __getattr__(cls, name: str) -> Any:
        return _attribute(name)

    def __or__(cls, other: Any) -> Any:
        return Any

    __ror__ = __or__


def _attribute(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Empty(name, (), {"__init__": lambda self, *args, **kwargs: None})
