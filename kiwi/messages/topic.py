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
    """There is a plan, and the note states a fact about it."""


NOTHING = "Nothing has to be done"
"""The first words of a remedy that asks for no action."""


@dataclass(frozen=True)
class Topic:
    """One kind of message, with the texts that all its messages share.

    - `code`: `KIWI-`, a letter and three digits. A code never changes and is never reused. Errors
      are numbered from 001, notes and warnings from 101.
    - `title`: one sentence about the kind of message, without values and full stop.
    - `cause`: the likely reason.
    - `remedy`: what to try next. It begins with `NOTHING` if nothing has to be done.
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
        """The remedy; empty if nothing has to be done."""
        return "" if self.remedy.startswith(NOTHING) else self.remedy

    @property
    def anchor(self) -> str:
        """The HTML anchor of the topic on its reference page."""
        return self.code.lower()
