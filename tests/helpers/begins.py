"""Compilers of tests."""

from collections.abc import Callable
from functools import partial
from typing import Any

from kiwi.xla.compilers import Begin


def begins(compile: Callable[..., Any]) -> Begin:
    """Compiles a step once it is waited for."""
    return lambda step: partial(compile, step)
