"""Kiwi's messages to users: errors, notes and warnings, each with a stable code.

A topic (`kiwi.messages.topics`) holds the code, title, cause and remedy of one kind of message. A
message adds the values of one case to a topic: an error (`kiwi.errors`) or a note (`Note`).

    python -m kiwi.messages    # writes docs/reference/errors.md and docs/reference/notes.md
"""

from kiwi.messages.note import Note as Note
from kiwi.messages.topic import Level as Level
from kiwi.messages.topic import Topic as Topic
