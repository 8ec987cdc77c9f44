"""What an attempt is: a named thing that the search may try, and what it may spend."""

import enum
from dataclasses import dataclass


class Kind(enum.Enum):
    """What an attempt changes.

    - `REQUEST`: what is planned: the arguments on the host, whether values are offloaded.
    - `SEARCH`: from where a search of the problem begins, and under which limit.
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

    - `name`: how `plan.history` calls it.
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
