"""One kind of message."""

import enum
from dataclasses import dataclass


class Level(enum.Enum):
    """The effect of a message on planning."""

    ERROR = "error"
    """There is no plan."""

    WARNING = "warning"
    """There is a plan, but something in it is not as it was asked for."""

    NOTE = "note"
    """There is a plan, and its reader should know something about it."""


NOTHING = "Nothing has to be done"


@dataclass(frozen=True)
class Topic:
    """One kind of message, as the registry and the reference pages have it.

    - `code`: `KIWI-`, a letter and three digits. It never changes and is never used again. Errors
      count from 001, notes and warnings from 101.
    - `title`: the kind in one sentence, without values.
    - `cause`: the likely reason.
    - `remedy`: what to try next; it begins with `NOTHING` where nothing has to be done.
    """

    code: str
    title: str
    cause: str
    remedy: str
    level: Level

    @property
    def section(self) -> str:
        """The letter of the code."""
        return self.code[len("KIWI-")]

    @property
    def suggestion(self) -> str:
        """The remedy; empty where nothing has to be done."""
        return "" if self.remedy.startswith(NOTHING) else self.remedy

    @property
    def anchor(self) -> str:
        """The place on its reference page."""
        return self.code.lower()
