"""The user's `make_step`, which returns a function and its arguments for a batch size, a number of
microbatches and a number of stages."""

import functools
import inspect
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

from kiwi import loading
from kiwi.api import PlannedFunction
from kiwi.configurations.configuration import Configuration
from kiwi.errors import InvalidArgumentError
from kiwi.loading import UserFunction
from kiwi.messages import topics
from kiwi.problem.step import StepToPlan

PARAMETERS = ("batch_size", "microbatches", "stages")
"""The parameters that a `make_step` may take, by name."""


@dataclass(frozen=True)
class StepMaker:
    """A `make_step`, or the text `FILE.py:FUNCTION` that names one."""

    given: Callable[..., Any] | str

    @property
    def function(self) -> Callable[..., Any]:
        """The function; raises `InvalidArgumentError` if the text names none."""
        return _loaded(self.given) if isinstance(self.given, str) else self.given

    @property
    def name(self) -> str:
        """The name of the function, for people and files."""
        given = self.given
        return given if isinstance(given, str) else getattr(given, "__name__", repr(given))

    def parameters(self) -> tuple[tuple[str, bool], ...]:
        """The members of `PARAMETERS` that the function takes, and whether it needs each.

        **Raises:** `InvalidArgumentError` if `make_step` is no function, or needs a parameter that
        is not in `PARAMETERS`.
        """
        if not callable(self.function):
            raise InvalidArgumentError(
                f"make_step is {type(self.given).__name__}, no function.",
                topic=topics.NOT_A_MAKER,
            )
        signature = inspect.signature(self.function).parameters
        unknown = [
            parameter.name
            for parameter in signature.values()
            if parameter.name not in PARAMETERS and _is_needed(parameter)
        ]
        if unknown:
            raise InvalidArgumentError(
                f"make_step needs {', '.join(unknown)}, which a search does not choose.",
                topic=topics.UNSEARCHED_PARAMETER,
                suggestion=f"Parameters called {', '.join(PARAMETERS)}; functools.partial fixes "
                "all others.",
            )
        return tuple(
            (name, _is_needed(signature[name])) for name in PARAMETERS if name in signature
        )

    def make(self, configuration: Configuration) -> UserFunction:
        """The step of a configuration.

        **Raises:** `InvalidArgumentError` if `make_step` has no such step, or returns something
        else than a function and its arguments.
        """
        arguments = {name: getattr(configuration, name) for name in PARAMETERS}
        arguments = {name: value for name, value in arguments.items() if value is not None}
        try:
            step = self.function(**arguments)
        except (ValueError, TypeError, ZeroDivisionError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise InvalidArgumentError(
                f"make_step has no such step: {reason}", topic=topics.STEP_REFUSED
            ) from error
        if not isinstance(step, tuple) or len(step) != 2 or not callable(step[0]):
            raise InvalidArgumentError(
                f"make_step returned {type(step).__name__}, not a function and its arguments.",
                topic=topics.NOT_A_STEP,
            )
        return loading.with_arguments(*step)


def _is_needed(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in (
        parameter.VAR_POSITIONAL,
        parameter.VAR_KEYWORD,
    )


_loaded = functools.cache(loading.load_function)


@dataclass(frozen=True)
class StepToSearch:
    """A step that is made once for all meshes: the function with its traces, and its arguments."""

    planned: PlannedFunction
    user: UserFunction

    @property
    def traced(self) -> StepToPlan:
        """The traced step."""
        return self.planned.traced(*self.user.args, **self.user.kwargs)

    def with_options(self, **options: Any) -> "StepToSearch":
        """The step under other options of `kiwi.jit`."""
        return replace(self, planned=self.planned.with_options(**options))


def made_step(maker: StepMaker, configuration: Configuration) -> StepToSearch:
    """Returns the step of a configuration. Steps are cached, so a step is traced once for several
    meshes."""
    key = configuration.batch_size, configuration.microbatches, configuration.stages
    function = maker.given
    if not isinstance(function, Hashable):
        return _made(maker, configuration)
    return _kept(function, key)


@functools.lru_cache(maxsize=4)
def _kept(given: Any, key: tuple[int | None, ...]) -> StepToSearch:
    return _made(StepMaker(given), Configuration("", (), *key))


def _made(maker: StepMaker, configuration: Configuration) -> StepToSearch:
    user = maker.make(configuration)
    return StepToSearch(PlannedFunction(user.function, user.options), user)
