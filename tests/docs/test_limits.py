"""The length of the documentation is limited, so that it can be read."""

import re

from tests.docs.pages import DOCS, ROOT, prose

MOST_WORDS = 25_000
"""The largest number of words of all pages except evidence and reference, without code."""

MOST_README_LINES = 120
MOST_CHANGES = 60
"""The largest number of bullets of one release."""


def test_pages_that_teach_have_few_words():
    pages = [p for p in DOCS.glob("**/*.md") if not {"evidence", "reference"} & set(p.parts)]
    words = {page.relative_to(DOCS).as_posix(): count(prose(page)) for page in pages}
    assert sum(words.values()) <= MOST_WORDS, words


def count(text: str) -> int:
    return sum(1 for word in text.split() if re.search(r"\w", word))


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= MOST_README_LINES


def test_a_release_has_few_changes():
    releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE)
    for release in releases[1:]:
        title = release.splitlines()[0]
        assert len(re.findall(r"^- ", release, re.MULTILINE)) <= MOST_CHANGES, title
