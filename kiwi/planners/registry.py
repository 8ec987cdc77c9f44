"""All planners by name: the one table that settings, errors, the command line and tests read.

Planners come in modules with a tuple `PLANNERS`, which are named here and not imported
(`MODULES`). One after the other is imported while a name that is asked for is not in the table, and
all of them where planners are listed. A module that is not installed is left out: Kiwi's own
planners work without those of the literature.
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
"""The modules whose `PLANNERS` are found by their names, in the order in which they are listed."""

_registered: dict[str, Planner] = {}


def register(planner: Planner) -> None:
    """Adds a planner, which is then found by its name; raises `InvalidArgumentError` if the name is
    taken."""
    if planner.name in planners():
        raise InvalidArgumentError(
            f"There is a planner {planner.name!r} already.", topic=topics.PLANNER_TAKEN
        )
    _registered[planner.name] = planner


def unregister(name: str) -> None:
    """Removes a planner that `register` added; raises `UnknownPlannerError`."""
    planner_named(name)
    del _registered[name]


def planners() -> Mapping[str, Planner]:
    """Every planner by name, in the order in which they are listed."""
    for module in MODULES:
        _load(module)
    return MappingProxyType(_registered)


def planner_named(name: str | PlannerObject) -> Planner:
    """The planner of a name; a planner is returned as it is. Raises `UnknownPlannerError`, which
    lists all names, or `InvalidArgumentError` for anything else."""
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
    """Every planner with its description, for a reader at a terminal."""
    return "; ".join(f"{p.name}: {p.description}" for p in planners().values())


@functools.cache
def _load(module: str) -> None:
    """Adds the planners of a module, once in a process; none of a module that is not installed."""
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        is_missing = error.name is not None and f"{module}.".startswith(f"{error.name}.")
        if not is_missing:
            raise
        return
    for planner in found.PLANNERS:
        _registered[planner.name] = planner
