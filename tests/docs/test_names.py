"""What the documentation names is there: files of the repository, modules, attributes."""

import importlib
import re
from functools import reduce

import pytest

from tests.docs.test_code_blocks import PAGES, ROOT

READ = [*PAGES, ROOT / "CONTRIBUTING.md"]
FILE = re.compile(r"\b(?:kiwi|tests|benchmarks|examples|experiments)/[\w/.-]*\w")
NAME = re.compile(r"\bkiwi(?:\.[A-Za-z_]\w*)+")
MODULE = re.compile(r"\bpython -m ((?:kiwi|benchmarks|examples|experiments)[\w.]*\w)")


@pytest.mark.parametrize("page", READ, ids=[page.stem for page in READ])
def test_what_a_page_names_exists(page):
    assert missing_in(page.read_text("utf-8")) == []


def test_what_a_docstring_names_exists():
    for file in ROOT.glob("kiwi/**/*.py"):
        quoted = re.findall(r"`([^`\n]+)`", file.read_text("utf-8"))
        assert missing_in(" ".join(quoted)) == [], file


def missing_in(text: str) -> list[str]:
    missing = [name for name in FILE.findall(text) if not list(ROOT.glob(name))]
    missing += [name for name in NAME.findall(text) if not resolves(name)]
    missing += [name for name in MODULE.findall(text) if not is_module(name)]
    return missing


def resolves(name: str) -> bool:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        try:
            reduce(getattr, parts[count:], module)
        except AttributeError:
            return False
        return True
    return False


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()
