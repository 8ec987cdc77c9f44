"""The table of attempts: complete, consistent with the modules and shares that it names, and in the
documentation."""

import ast
import importlib.util
import inspect
import itertools
import re
from pathlib import Path

import pytest

from kiwi.campaign import attempts, shares
from kiwi.campaign.attempt import Attempt
from kiwi.campaign.attempts import ATTEMPTS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "attempts.md"


def shares_with_texts() -> list[tuple[str, object, str]]:
    """Yields each entry of the table of shares with its value and its text."""
    body = ast.parse(inspect.getsource(shares)).body
    found = []
    for assigned, text in itertools.pairwise(body):
        if isinstance(assigned, ast.Assign):
            assert isinstance(assigned.targets[0], ast.Name)
            name = assigned.targets[0].id
            assert isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant), name
            found.append((name, getattr(shares, name), " ".join(str(text.value.value).split())))
    return found


def attempts_table() -> str:
    rows = [
        f"| {a.kind.value} | {a.name} | {a.when} | {a.tries} | "
        f"{', '.join(f'`{name}`' for name in a.spends)} | `{a.module.replace('.', '/')}.py` |"
        for a in ATTEMPTS
    ]
    head = [
        "| kind | attempt | when | tries | spends | module |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*head, *rows])


def shares_table() -> str:
    rows = [f"| `{name}` | {value} | {text} |" for name, value, text in shares_with_texts()]
    return "\n".join(["| entry | value | text |", "| --- | --- | --- |", *rows])


def test_every_attempt_is_in_the_table_under_a_name_of_its_own():
    defined = [value for value in vars(attempts).values() if isinstance(value, Attempt)]
    assert list(ATTEMPTS) == defined
    assert len({attempt.name for attempt in ATTEMPTS}) == len(ATTEMPTS)


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
def test_an_attempt_names_a_module_and_entries_of_the_table(attempt):
    assert importlib.util.find_spec(attempt.module) is not None
    assert all(hasattr(shares, name) for name in attempt.spends)


def test_every_share_is_used():
    root = Path(__file__).parents[2] / "kiwi"
    used = "".join(path.read_text(encoding="utf-8") for path in root.rglob("*.py"))
    unused = [name for name, _, _ in shares_with_texts() if f"shares.{name}" not in used]
    assert unused == []


def test_the_page_has_both_tables(request):
    text = PAGE.read_text(encoding="utf-8")
    for name, table in (("attempts", attempts_table()), ("shares", shares_table())):
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda m, table=table: f"{m[1]}{table}\n{m[2]}", text, flags=re.S)
    if request.config.getoption("--update-goldens"):
        PAGE.write_text(text, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == text
