"""The user's `make_step`: from batch size, microbatches and stages to a function and arguments."""

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
        """The function; raises `InvalidArgumentError` if there is none."""
        return _loaded(self.given) if isinstance(self.given, str) else self.given

    @property
    def name(self) -> str:
        """The name, for people and files."""
        given = self.given
        return given if isinstance(given, str) else getattr(given, "__name__", repr(given))

    def parameters(self) -> tuple[tuple[str, bool], ...]:
        """The members of `PARAMETERS` that it takes, and whether it needs each."""
        if not callable(self.function):
            raise InvalidArgumentError(
                f"make_step is {type(self.given).__name__}, no function.",
                topic=topics.NOT_A_MAKER,
            )
        own = inspect.signature(self.function).parameters
        others = [p.name for p in own.values() if p.name not in PARAMETERS and _is_needed(p)]
        if others:
            raise InvalidArgumentError(
                f"make_step needs {', '.join(others)}, which a search does not choose.",
                topic=topics.UNSEARCHED_PARAMETER,
                suggestion=f"Parameters called {', '.join(PARAMETERS)}; functools.partial fixes "
                "all others.",
            )
        return tuple((name, _is_needed(own[name])) for name in PARAMETERS if name in own)

    def make(self, configuration: Configuration) -> UserFunction:
        """The step of a configuration; raises `InvalidArgumentError` if there is none."""
        given = {name: getattr(configuration, name) for name in PARAMETERS}
        given = {name: value for name, value in given.items() if value is not None}
        try:
            made = self.function(**given)
        except (ValueError, TypeError, ZeroDivisionError) as error:
            said = f"{type(error).__name__}: {error}"
            raise InvalidArgumentError(
                f"make_step has no such step: {said}", topic=topics.STEP_REFUSED
            ) from error
        if not isinstance(made, tuple) or len(made) != 2 or not callable(made[0]):
            raise InvalidArgumentError(
                f"make_step returned {type(made).__name__}, not a function and its arguments.",
                topic=topics.NOT_A_STEP,
            )
        return loading.with_arguments(*made)


def _is_needed(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in (
        parameter.VAR_POSITIONAL,
        parameter.VAR_KEYWORD,
    )


_loaded = functools.cache(loading.load_function)


@dataclass(frozen=True)
class StepToSearch:
    """A step made once for all meshes: the function with its traces, and its arguments."""

    planned: PlannedFunction
    user: UserFunction

    @property
    def traced(self) -> StepToPlan:
        """The step, traced."""
        return self.planned.traced(*self.user.args, **self.user.kwargs)

    def with_options(self, **options: Any) -> "StepToSearch":
        """The same under other options of `kiwi.jit`."""
        return replace(self, planned=self.planned.with_options(**options))


def made_step(maker: StepMaker, configuration: Configuration) -> StepToSearch:
    """The step of a configuration. It is kept, and so traced once for several meshes."""
    key = configuration.batch_size, configuration.microbatches, configuration.stages
    given = maker.given
    if not isinstance(given, Hashable):
        return _made(maker, configuration)
    return _kept(given, key)


@functools.lru_cache(maxsize=4)
def _kept(given: Any, key: tuple[int | None, ...]) -> StepToSearch:
    return _made(StepMaker(given), Configuration("", (), *key))


def _made(maker: StepMaker, configuration: Configuration) -> StepToSearch:
    user = maker.make(configuration)
    return StepToSearch(PlannedFunction(user.function, user.options), user)
