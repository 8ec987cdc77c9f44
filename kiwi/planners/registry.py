"""All planners by name: the one table that settings, errors, the command line and tests read.

A module of planners has a tuple `PLANNERS`. This module names such modules (`MODULES`) and does not
import them. If a name is not in the table, the modules are imported one by one until it is. All
modules are imported if planners are listed. A module that is not installed is skipped, so that
Kiwi's own planners work without the planners of the literature.
"""

import functools
import importlib
from collections.abc import Mapping
from types import MappingProxyType

from kiwi.errors import InvalidArgumentError, UnknownPlannerError, check_known
from kiwi.messages import topics
from kiwi.options import PlannerObject
from kiwi.planners.planner import Planner

MODULES = ("kiwi.planners.product", "kiwi.literature.planners")
"""The modules with planners, in the order in which they are imported and their planners listed."""

_registered: dict[str, Planner] = {}
"""The planners that are registered so far, by name."""


def register(planner: Planner) -> None:
    """Adds a planner to the table.

    **Raises:** `InvalidArgumentError` if its name is taken.
    """
    if planner.name in planners():
        raise InvalidArgumentError(
            f"There is a planner {planner.name!r} already.", topic=topics.PLANNER_TAKEN
        )
    _registered[planner.name] = planner


def unregister(name: str) -> None:
    """Removes a planner from the table.

    **Raises:** `UnknownPlannerError` if there is no planner with this name.
    """
    planner_named(name)
    del _registered[name]


def planners() -> Mapping[str, Planner]:
    """Returns all planners by name, in the order in which they are listed."""
    for module in MODULES:
        _load(module)
    return MappingProxyType(_registered)


def planner_named(name: str | PlannerObject) -> Planner:
    """Returns the planner with a name. A planner is returned as it is.

    **Raises:** `UnknownPlannerError`, which lists all names, for an unknown name;
    `InvalidArgumentError` for an argument that is neither a name nor a planner.
    """
    if isinstance(name, Planner):
        return name
    if not isinstance(name, str):
        raise InvalidArgumentError(
            f"planner={name!r} is neither a name nor a planner.",
            topic=topics.NOT_A_PLANNER,
        )
    for module in MODULES:
        if name in _registered:
            break
        _load(module)
    check_known(name, _registered, "planner", UnknownPlannerError)
    return _registered[name]


def described() -> str:
    """Returns the names and descriptions of all planners as one line for the command line."""
    return "; ".join(f"{planner.name}: {planner.description}" for planner in planners().values())


@functools.cache
def _load(module: str) -> None:
    """Adds the planners of a module to the table, once in a process. A module that is not installed
    is ignored."""
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        is_missing = error.name is not None and f"{module}.".startswith(f"{error.name}.")
        if not is_missing:
            raise
        return
    for planner in imported.PLANNERS:
        _registered[planner.name] = planner
