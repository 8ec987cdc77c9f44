"""Compilers that stand in for `kiwi.xla.compilers.Begin` in tests."""

from collections.abc import Callable
from functools import partial
from typing import Any

from kiwi.xla.compilers import Begin


def begins(compile: Callable[..., Any]) -> Begin:
    """Returns a `Begin` that compiles a step only when its result is asked for."""
    return lambda step: partial(compile, step)
