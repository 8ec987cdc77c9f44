"""The reference pages of messages, written from the topics."""

from collections.abc import Iterator

from kiwi.messages.topic import Level, Topic
from kiwi.messages.topics import SECTIONS, all_topics

_GENERATED = (
    "This page is generated (`python -m kiwi.messages`) and checked by a test. "
    "`kiwi explain CODE` prints a paragraph of it."
)

_ERRORS = f"""# Errors

Each error of Kiwi has a code that stays the same from version to version. The message names the
values of the case; here stand the usual cause and what to try. In Python an error is a
`kiwi.errors.KiwiError` with the attributes `code`, `what`, `cause` and `suggestion`. On the command
line the exit code is 3 where no plan fits the budget, and 4 for all other errors of this page.

{_GENERATED}
"""

_NOTES = f"""# Notes and warnings

A plan carries notes: `plan.notes`, the end of what `kiwi plan` prints, and a section of the report.
A warning says that something is not as asked. Each note is a `kiwi.messages.Note` with the
attributes `code`, `text`, `suggestion` and `values`; plan files keep them.

{_GENERATED}
"""


def errors_page() -> str:
    """Returns the text of `docs/reference/errors.md`."""
    return _page(_ERRORS, (Level.ERROR,))


def notes_page() -> str:
    """Returns the text of `docs/reference/notes.md`."""
    return _page(_NOTES, (Level.NOTE, Level.WARNING))


def paragraph(topic: Topic) -> str:
    """Returns the topic as `kiwi explain CODE` prints it: title, cause and remedy."""
    return (
        f"{topic.code} ({topic.level.value}): {topic.title}\n"
        f"Likely cause: {topic.cause}\nTry: {topic.remedy}"
    )


def _page(head: str, levels: tuple[Level, ...]) -> str:
    topics = [topic for topic in all_topics() if topic.level in levels]
    return "\n".join([head, *_sections(topics, has_levels=len(levels) > 1)])


def _sections(topics: list[Topic], *, has_levels: bool) -> Iterator[str]:
    for letter, title in SECTIONS.items():
        section_topics = [topic for topic in topics if topic.section == letter]
        if not section_topics:
            continue
        yield f"## {letter}: {title}\n"
        for topic in section_topics:
            level = f" *({topic.level.value})*" if has_levels else ""
            yield f"### {topic.code}\n"
            yield f"**{topic.title}.**{level}\n"
            yield f"*Cause:* {_escaped(topic.cause)}\n\n*Try:* {_escaped(topic.remedy)}\n"


def _escaped(text: str) -> str:
    """Returns the text with the marks of Markdown (`*` and `<`) escaped."""
    for mark in ("*", "<"):
        text = text.replace(mark, f"\\{mark}")
    return text
