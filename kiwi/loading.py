"""The user's file: the function to plan and its arguments."""

import contextlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from kiwi.api import PlannedFunction
from kiwi.errors import InvalidArgumentError
from kiwi.messages import topics
from kiwi.options import Options


@dataclass(frozen=True, eq=False)
class UserFunction:
    """What `FILE.py:FUNCTION` names: the function, its arguments, options it came with."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: Options


def use_cpu_devices(count: int) -> None:
    """Plans need no accelerator; virtual CPU devices save the compile check a process."""
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", count)


def load(spec: str, args_name: str) -> UserFunction:
    """Imports the file and calls its `make_args`; raises `InvalidArgumentError` if file, function
    or arguments are not there."""
    module, path, found = _found(spec)
    return with_arguments(found, _arguments(module, path, args_name))


def load_function(spec: str) -> Callable[..., Any]:
    """Imports the file and returns its function; raises `InvalidArgumentError` if there is none."""
    return _found(spec)[2]


def with_arguments(function: Callable[..., Any], arguments: Any) -> UserFunction:
    """A tuple or list is positional arguments, a dictionary keyword arguments, anything else one
    argument."""
    # A NamedTuple is one argument: a training state often is one.
    is_several = type(arguments) in (tuple, list)
    args = () if isinstance(arguments, dict) else (arguments,)
    args = tuple(arguments) if is_several else args
    kwargs = arguments if isinstance(arguments, dict) else {}
    if isinstance(function, PlannedFunction):
        return UserFunction(function.function, args, kwargs, function.options)
    return UserFunction(function, args, kwargs, Options())


def _found(spec: str) -> tuple[Any, str, Callable[..., Any]]:
    """The module of `FILE.py:FUNCTION`, its path and the function."""
    path, separator, name = spec.rpartition(":")
    if not separator or not path or not name:
        raise InvalidArgumentError(f"{spec!r} names no function.", topic=topics.SPEC)
    module = _module(Path(path))
    found = _attribute(module, path, name)
    if not callable(found):
        raise InvalidArgumentError(
            f"{name} in {path} is {type(found).__name__}, no function.", topic=topics.NOT_CALLABLE
        )
    return module, path, found


def _module(path: Path) -> Any:
    if not path.is_file():
        raise InvalidArgumentError(f"There is no file {path}.", topic=topics.NO_FILE)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidArgumentError(f"{path} is no Python file.", topic=topics.NOT_PYTHON)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    # As `python FILE.py` would: modules beside the file can be imported.
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise InvalidArgumentError(
            f"{path} cannot be read: {error}.", topic=topics.SYNTAX
        ) from error
    return module


def _attribute(module: Any, path: str, name: str) -> Any:
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            public = [n for n, v in vars(module).items() if n[0] != "_" and callable(v)]
            raise InvalidArgumentError(
                f"There is no {name} in {path}.",
                topic=topics.NO_SUCH_FUNCTION,
                suggestion="One of its functions" + (f": {', '.join(public)}." if public else "."),
            )
        found = getattr(found, part)
    return found


def _arguments(module: Any, path: str, name: str) -> Any:
    if not hasattr(module, name):
        raise InvalidArgumentError(
            f"There is no {name} in {path}, which would return the function's arguments.",
            topic=topics.NO_ARGUMENTS_FUNCTION,
            suggestion=f"def {name}(): return state, batch  (jax.ShapeDtypeStructs will do), "
            "or --args NAME.",
        )
    return getattr(module, name)()
