"""The pages of the documentation, and the parts that tests read."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.glob("**/*.md")), ROOT / "README.md"]
"""The pages of the site, and the README."""

BESIDE = [ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")]
"""Other texts for users."""

BLOCK = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    """Returns the path of a page below the repository, without its ending."""
    return page.relative_to(ROOT).with_suffix("").as_posix()


def blocks(page: Path) -> list[tuple[str, str]]:
    """Returns the fenced blocks of a page: the text behind the fence, and the code."""
    return [(m["info"].strip(), m["code"]) for m in BLOCK.finditer(page.read_text("utf-8"))]


def prose(page: Path) -> str:
    """Returns a page without its fenced blocks."""
    return BLOCK.sub("", page.read_text("utf-8"))


def anchors(page: Path) -> set[str]:
    """Returns the names of places of a page that links may use: its headings as mkdocs and GitHub
    write them."""
    return {slug(heading) for heading in headings(page)}


def headings(page: Path) -> list[str]:
    """Returns the texts of a page's headings."""
    return re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)


def slug(heading: str) -> str:
    """Returns the anchor of a heading."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", text).strip())
