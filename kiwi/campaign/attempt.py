"""`Attempt`: a named step that a campaign may try, with its trigger and its limits."""

import enum
from dataclasses import dataclass


class Kind(enum.Enum):
    """The part of planning that an attempt changes.

    - `REQUEST`: which arguments lie in host memory, or whether values are offloaded.
    - `SEARCH`: the start of a search of the problem, and the search's memory limit.
    - `SOLUTION`: the way in which one problem is solved under one limit.
    - `PROGRAM`: the way in which one plan is compiled.
    """

    REQUEST = "request"
    SEARCH = "search"
    SOLUTION = "solution"
    PROGRAM = "program"


@dataclass(frozen=True)
class Attempt:
    """A description of an attempt, a row of the table in `docs/reference/attempts.md`.

    - `name`: the attempt's name in `plan.history`.
    - `kind`: the part of planning that the attempt changes.
    - `when`: the trigger, in words.
    - `tries`: the change that the attempt makes, in words.
    - `spends`: the names of the constants in `kiwi.campaign.shares` that limit the attempt.
    - `module`: the module that makes the attempt, e.g. "kiwi.campaign.campaign".
    """

    name: str
    kind: Kind
    when: str
    tries: str
    spends: tuple[str, ...]
    module: str
