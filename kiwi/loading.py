"""Loading the user's file, which contains the function to plan and its arguments."""

import contextlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from kiwi.api import PlannedFunction
from kiwi.calls.signature import misfit
from kiwi.errors import InvalidArgumentError, InvalidFunctionError, KiwiError, NotEnoughDevicesError
from kiwi.messages import topics
from kiwi.options import Options
from kiwi.quiet import start_jax

MOST_CPU_DEVICES = 2**14
"""For a larger mesh no virtual devices are started: JAX needs long to start them."""


@dataclass(frozen=True, eq=False)
class UserFunction:
    """The function of `FILE.py:FUNCTION`, its arguments, and the options that it was decorated
    with."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: Options


def use_cpu_devices(count: int) -> None:
    """Starts `count` virtual CPU devices, or one if `count` is not positive or exceeds
    `MOST_CPU_DEVICES`. Planning needs no devices. With virtual devices, the compile check needs no
    process of its own."""
    start_jax(count if 1 <= count <= MOST_CPU_DEVICES else 1)


def use_attached_devices() -> None:
    """Starts JAX's backends.

    **Raises:** `NotEnoughDevicesError` if they do not start.
    """
    try:
        start_jax()
    except (RuntimeError, AssertionError) as error:  # JAX asserts that the platform is known.
        reason = str(error).rstrip(".") or f"JAX_PLATFORMS is {os.environ.get('JAX_PLATFORMS')!r}"
        raise NotEnoughDevicesError(
            f"jax finds no devices: {reason}.", topic=topics.NO_BACKEND
        ) from error


def load(spec: str, args_name: str) -> UserFunction:
    """Imports a file, calls its function that makes the arguments, and returns the function with
    its arguments.

    - `spec`: the text `FILE.py:FUNCTION`.
    - `args_name`: the name of the function that makes the arguments.

    **Raises:** `InvalidArgumentError` if the file, the function or the arguments are missing, or if
    the file raises; `InvalidFunctionError` if the function does not take the arguments.
    """
    module, path, function = _found(spec)
    user = with_arguments(function, _arguments(module, path, args_name))
    _check_taken(user, args_name)
    return user


def _check_taken(user: UserFunction, args_name: str) -> None:
    """Raises `InvalidFunctionError` if the function does not take the arguments of its file."""
    reason = misfit(user.function, user.args, user.kwargs)
    if reason is None:
        return
    count, names = len(user.args), ", ".join(user.kwargs)
    returned = f"the keywords {names}" if names else f"{count} argument{'s' * (count != 1)}"
    name = getattr(user.function, "__name__", "the function")
    signature = inspect.signature(user.function)
    raise InvalidFunctionError(
        f"{args_name} returns {returned}, and {name}{signature} does not take that: {reason}.",
        topic=topics.ARGUMENTS_MISFIT,
    )


def load_function(spec: str) -> Callable[..., Any]:
    """Imports the file of `FILE.py:FUNCTION` and returns the function.

    **Raises:** `InvalidArgumentError` if there is no such function, or if the file raises.
    """
    return _found(spec)[2]


def with_arguments(function: Callable[..., Any], arguments: Any) -> UserFunction:
    """Returns a function with its arguments. A tuple or list contains positional arguments, a
    dictionary contains keyword arguments, and anything else is one argument."""
    # A NamedTuple is one argument: a training state often is one.
    is_several = type(arguments) in (tuple, list)
    args = () if isinstance(arguments, dict) else (arguments,)
    args = tuple(arguments) if is_several else args
    kwargs = arguments if isinstance(arguments, dict) else {}
    if isinstance(function, PlannedFunction):
        return UserFunction(function.function, args, kwargs, function.options)
    return UserFunction(function, args, kwargs, Options())


def _found(spec: str) -> tuple[Any, str, Callable[..., Any]]:
    """Returns the module of `FILE.py:FUNCTION`, its path and the function."""
    path, separator, name = spec.rpartition(":")
    if not separator or not path or not name:
        raise InvalidArgumentError(f"{spec!r} names no function.", topic=topics.SPEC)
    module = _module(Path(path))
    function = _attribute(module, path, name)
    if not callable(function):
        raise InvalidArgumentError(
            f"{name} in {path} is {type(function).__name__}, no function.",
            topic=topics.NOT_CALLABLE,
        )
    return module, path, function


def _module(path: Path) -> Any:
    if not path.is_file():
        raise InvalidArgumentError(f"There is no file {path}.", topic=topics.NO_FILE)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidArgumentError(f"{path} is no Python file.", topic=topics.NOT_PYTHON)
    module = importlib.util.module_from_spec(spec)
    if path.stem not in sys.modules or path.stem in _OWN_NAMES:
        # A module that is loaded already is not replaced: a file called types.py must not take the
        # place of a module that others import.
        sys.modules[path.stem] = module
        _OWN_NAMES.add(path.stem)
    _FILES.add(str(path.resolve()))
    # As with `python FILE.py`, the file can import modules beside it.
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except (KiwiError, KeyboardInterrupt):
        raise
    except SystemExit as error:
        raise InvalidArgumentError(
            f"{path} ends the program with {error.code!r} when it is imported{_line_in(error)}.",
            topic=topics.FILE_EXITS,
        ) from error
    except ModuleNotFoundError as error:
        raise InvalidArgumentError(
            f"{path} imports {error.name}, which is not installed{_line_in(error)}.",
            topic=topics.MISSING_IMPORT,
        ) from error
    except SyntaxError as error:
        raise InvalidArgumentError(
            f"{path} cannot be read: {error}.", topic=topics.SYNTAX
        ) from error
    except BaseException as error:
        raise InvalidArgumentError(
            f"{path} raises {_said(error)} when it is imported{_line_in(error)}.",
            topic=topics.FILE_RAISES,
        ) from error
    return module


def _attribute(module: Any, path: str, name: str) -> Any:
    attribute = module
    for part in name.split("."):
        if not hasattr(attribute, part):
            public = [n for n, member in vars(module).items() if n[0] != "_" and callable(member)]
            raise InvalidArgumentError(
                f"There is no {name} in {path}.",
                topic=topics.NO_SUCH_FUNCTION,
                suggestion="One of its functions" + (f": {', '.join(public)}." if public else "."),
            )
        attribute = getattr(attribute, part)
    return attribute


def _arguments(module: Any, path: str, name: str) -> Any:
    if not hasattr(module, name):
        raise InvalidArgumentError(
            f"There is no {name} in {path}, which would return the function's arguments.",
            topic=topics.NO_ARGUMENTS_FUNCTION,
            suggestion=f"def {name}(): return state, batch  (jax.ShapeDtypeStructs will do), "
            "or --args NAME.",
        )
    maker = getattr(module, name)
    try:
        arguments = maker()
    except (KiwiError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise InvalidArgumentError(
            f"{name} of {path} raises {_said(error)}{_line_in(error)}.",
            topic=topics.ARGUMENTS_RAISE,
        ) from error
    if arguments is None:
        raise InvalidArgumentError(
            f"{name} of {path} returned None, and not the function's arguments.",
            topic=topics.NO_ARGUMENTS_RETURNED,
        )
    return arguments


# The code below distinguishes faults of the user's code from faults of Kiwi.

_FILES: set[str] = set()
"""The paths of the files that were loaded."""

_OWN_NAMES: set[str] = set()
"""The names in `sys.modules` of the files that were loaded."""


@contextlib.contextmanager
def faults_explained() -> Iterator[None]:
    """A context manager that turns an error in the user's function into an `InvalidFunctionError`
    that names the line. Other errors pass."""
    try:
        yield
    except (KiwiError, KeyboardInterrupt):
        raise
    except BaseException as error:
        line = _line_in(error)
        if not line:
            raise
        concrete = isinstance(error, jax.errors.ConcretizationTypeError)
        raise InvalidFunctionError(
            f"The function raises {_said(error)}{line}.",
            topic=topics.DATA_DEPENDENT if concrete else topics.RAISES,
        ) from error


def _line_in(error: BaseException) -> str:
    """Returns the innermost line of a loaded file that an error passed through, as text; "" if
    there is none."""
    frames = traceback.walk_tb(error.__traceback__)
    lines = [(frame.f_code.co_filename, number) for frame, number in frames]
    lines_of_files = [(path, n) for path, n in lines if str(Path(path).resolve()) in _FILES]
    return (
        f" ({Path(lines_of_files[-1][0]).name}:{lines_of_files[-1][1]})" if lines_of_files else ""
    )


def _said(error: BaseException) -> str:
    """Returns an error as one line: its type, and the first line of its text without the full
    stop."""
    text = str(error).strip().split("\n")[0].rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
