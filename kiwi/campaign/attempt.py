"""`Attempt`: a named thing that the search may try, and what it may spend."""

import enum
from dataclasses import dataclass


class Kind(enum.Enum):
    """What an attempt changes.

    - `REQUEST`: the request: the arguments on the host, or whether values are offloaded.
    - `SEARCH`: the start of a search of the problem, and its limit.
    - `SOLUTION`: how one problem is solved under one limit.
    - `PROGRAM`: how one plan is compiled.
    """

    REQUEST = "request"
    SEARCH = "search"
    SOLUTION = "solution"
    PROGRAM = "program"


@dataclass(frozen=True)
class Attempt:
    """A named attempt.

    - `name`: its name in `plan.history`.
    - `when`: the trigger, in words.
    - `tries`: what it tries, in words.
    - `spends`: the entries of `kiwi.campaign.shares` that bound it.
    - `module`: the module of `kiwi` that makes it.
    """

    name: str
    kind: Kind
    when: str
    tries: str
    spends: tuple[str, ...]
    module: str
