"""The texts of errors and notes that the troubleshooting page quotes are in the code."""

import ast
import re

from tests.docs.pages import DOCS, ROOT

PAGE = DOCS / "guides" / "troubleshooting.md"
QUOTED = re.compile(r"\*([^*|]+)\*")
"""A text in the first cell of a row. Varying parts are an ellipsis."""


def test_the_quoted_texts_are_in_the_code():
    known = messages()
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| *")]
    quoted = [text for row in rows for text in QUOTED.findall(row.split(" | ")[0])]
    assert len(quoted) > 50
    assert [text for text in quoted if not any(fits(text, message) for message in known)] == []


def messages() -> set[str]:
    """Returns all texts of the code. Values that are filled in are an ellipsis."""
    found = set()
    for file in ROOT.glob("kiwi/**/*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.add("".join(map(part_of, node.values)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(re.sub(r"\{\w*\}", "…", node.value))
    return {text for text in found if "\n" not in text}  # Docstrings mostly have several lines.


def part_of(value: ast.expr) -> str:
    return str(value.value) if isinstance(value, ast.Constant) else "…"


def fits(text: str, message: str) -> bool:
    """Returns whether the parts of a text between ellipses occur in a message, in order."""
    position = 0
    for part in filter(None, (part.strip() for part in text.split("…"))):
        found = message.find(part, position)
        if found < 0:
            return False
        position = found + len(part)
    return True
