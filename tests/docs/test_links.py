"""Every link between pages of the repository leads to an existing file, and to an existing place in
it."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import BESIDE, PAGES, ROOT, anchors, headings, name_of, prose

READ = [*PAGES, *BESIDE, ROOT / "benchmarks" / "paper" / "README.md"]
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")


@pytest.mark.parametrize("page", READ, ids=map(name_of, READ))
def test_the_links_of_a_page_lead_somewhere(page):
    broken = [target for target in LINK.findall(prose(page)) if not leads(page, target)]
    assert broken == []


def leads(page: Path, target: str) -> bool:
    if re.match(r"[a-z]+://|mailto:", target):
        return True
    path, _, anchor = target.partition("#")
    other = (page.parent / path).resolve() if path else page
    if not other.exists():
        return False
    # The API page is written by mkdocs, which checks its own anchors.
    return not anchor or other.suffix != ".md" or anchor in anchors(other) or other.stem == "api"


@pytest.mark.parametrize("page", READ, ids=map(name_of, READ))
def test_headings_read_the_same_on_github(page):
    """GitHub shows `{ #name }` as text, and makes another anchor than mkdocs of a dash between
    spaces."""
    odd = [text for text in headings(page) if re.search(r"\{ ?#|\s[^\w\s`]+\s", text)]
    assert odd == []
