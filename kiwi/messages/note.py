"""Notes and warnings of plans: messages as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from kiwi.messages.topic import Level, Topic
from kiwi.messages.topics import topic_of

Value = bool | int | float | str | None


@dataclass(frozen=True)
class Note:
    """A fact that the reader of a plan should know.

    - `code`: the code of its topic in `kiwi.messages.topics`.
    - `text`: the fact, with its values.
    - `suggestion`: what to try next; empty if nothing has to be done.
    - `values`: the values in the text, for programs.
    """

    code: str
    text: str
    suggestion: str = ""
    values: Mapping[str, Value] = field(default_factory=dict)

    @classmethod
    def of(cls, topic: Topic, text: str, *, suggestion: str | None = None, **values: Value) -> Self:
        """Returns a note of a topic, with the topic's suggestion unless `suggestion` is given."""
        return cls(topic.code, text, topic.suggestion if suggestion is None else suggestion, values)

    @classmethod
    def of_plain(cls, data: Any) -> Self:
        """Returns the note that `plain` stores as `data`."""
        return cls(data["code"], data["text"], data["suggestion"], data["values"])

    def __contains__(self, words: str) -> bool:
        """Returns whether `words` occur in the printed note."""
        return words in str(self)

    @property
    def plain(self) -> dict[str, Any]:
        """The note as plan files and reports store it."""
        return {
            "code": self.code,
            "text": self.text,
            "suggestion": self.suggestion,
            "values": dict(self.values),
        }

    @property
    def line(self) -> str:
        """The note as commands print it: "Note KIWI-S105: ..." or "Warning KIWI-K101: ..."."""
        topic = topic_of(self.code)
        is_warning = topic is not None and topic.level is Level.WARNING
        return f"{'Warning' if is_warning else 'Note'} {self}"

    def __str__(self) -> str:
        """Returns the code and the text. Reports and the reference page show the suggestion too."""
        return f"{self.code}: {self.text}"
