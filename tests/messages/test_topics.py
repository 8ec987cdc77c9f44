"""Messages: each has a topic with its own code, and the reference pages agree with the topics."""

import ast
import pickle
import re
from collections import Counter
from pathlib import Path

import pytest

from kiwi import errors
from kiwi.errors import KiwiError
from kiwi.messages import Level, Note, topics
from kiwi.messages.__main__ import FOLDER, PAGES
from kiwi.messages.pages import paragraph
from kiwi.messages.topics import SECTIONS, all_topics, topic_of

SOURCES = Path(errors.__file__).parent
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type)]
ERRORS = [kind for kind in KINDS if issubclass(kind, KiwiError)]
GENERAL = {
    "KiwiError",
    "InvalidArgumentError",
    "InvalidFunctionError",
    "InvalidMeshError",
    "InvalidSizeError",
    "ShardingConflictError",
    "CompileCheckError",
    "CompilerUnavailableError",
    "SolverUnavailableError",
}
"""Errors with many causes. Each place that raises one names its topic."""


def calls(folder: Path = SOURCES):
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                yield path, node


def test_codes_are_unique_and_well_formed():
    codes = Counter(topic.code for topic in all_topics())
    assert [code for code, count in codes.items() if count > 1] == []
    for topic in all_topics():
        found = re.fullmatch(r"KIWI-([A-Z])(\d{3})", topic.code)
        assert found and found[1] in SECTIONS, topic.code
        assert (int(found[2]) > 100) == (topic.level is not Level.ERROR), topic.code


def test_every_topic_says_cause_and_next_step_in_sentences():
    for topic in all_topics():
        assert topic.title and not topic.title.endswith("."), topic.code
        assert topic.cause.endswith("."), topic.code
        assert topic.remedy, topic.code


def test_every_error_has_a_topic_of_its_own():
    assert len(ERRORS) > 15
    for kind in ERRORS:
        assert kind.default_topic.level is Level.ERROR
        assert kind("No.", **({"plan": None} if kind is errors.BudgetNotMetError else {})).code


def test_general_errors_name_their_topic_where_they_are_raised():
    unnamed = [
        f"{path.relative_to(SOURCES)}:{node.lineno}"
        for path, node in calls()
        if isinstance(node.func, ast.Name)
        and node.func.id in GENERAL
        and not any(keyword.arg == "topic" for keyword in node.keywords)
    ]
    assert unnamed == []


def test_every_topic_is_told_somewhere():
    names = {name for name, value in vars(topics).items() if value in all_topics()}
    text = "\n".join(
        path.read_text("utf-8") for path in SOURCES.rglob("*.py") if path.name != "topics.py"
    )
    assert {name for name in names if not re.search(rf"\btopics\.{name}\b", text)} == set()


def test_every_note_has_a_topic():
    made = [
        node.args[0]
        for _, node in calls()
        if isinstance(node.func, ast.Attribute)
        and node.func.attr == "of"
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "Note"
    ]
    assert len(made) > 20
    told = {ast.unparse(node) for node in made}
    assert all(name.startswith("topics.") or name == "topic" for name in told), told


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_up_to_date(name):
    """`python -m kiwi.messages` writes it."""
    assert (FOLDER / name).read_text("utf-8") == PAGES[name]()


def test_errors_show_their_code_and_survive_processes():
    error = errors.InfeasibleBudgetError("No plan fits.", least_peak_bytes=12)
    assert str(error).startswith("KIWI-M001: No plan fits.\nLikely cause: ")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.least_peak_bytes == 12
    assert error.changed(cause="Another.").cause == "Another."


def test_an_error_without_cause_takes_that_of_its_topic():
    error = errors.InvalidArgumentError("No.", topic=topics.OUT_OF_RANGE, suggestion="Yes.")
    assert error.cause == topics.OUT_OF_RANGE.cause and error.suggestion == "Yes."


def test_notes_are_data():
    note = Note.of(topics.KEPT_COPIES, "2 are kept.", operands=2)
    assert Note.of_plain(note.plain) == note
    assert note.line == "Note KIWI-S105: 2 are kept."
    assert Note.of(topics.COSTLY_KERNEL, "Slow.").line == "Warning KIWI-K101: Slow."


def test_a_topic_in_words():
    topic = topic_of("KIWI-M003")
    assert topic is topics.SIZE_UNREADABLE
    assert paragraph(topic).startswith("KIWI-M003 (error): A memory size cannot be read\n")
    assert topic_of("KIWI-X999") is None
