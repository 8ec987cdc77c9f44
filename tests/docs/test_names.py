"""The names in the documentation exist: files of the repository, modules, attributes, headings."""

import importlib
import re
from dataclasses import fields
from functools import reduce

import pytest

import kiwi
from kiwi.plans.estimate import Estimate
from kiwi.xla.read.compiled_program import CompiledProgram
from tests.docs.pages import BESIDE, PAGES, ROOT, anchors, name_of, slug

READ = [*PAGES, *BESIDE]
FILE = re.compile(r"\b(?:kiwi|tests|benchmarks|examples|docs)/[\w/.-]*\w")
NAME = re.compile(r"\bkiwi(?:\.[A-Za-z_]\w*)+")
MODULE = re.compile(r"\bpython -m ((?:kiwi|benchmarks|examples)[\w.]*\w)")
OF_A_PLAN = re.compile(r"\bplan\.((?:estimate\.|compiled\.)?[a-z_]+)\b")
PAGE_AND_HEADING = re.compile(r'(docs/[\w/]+\.md)(?:,\s+"([^"]+)")?')


@pytest.mark.parametrize("page", READ, ids=map(name_of, READ))
def test_what_a_page_names_exists(page):
    text = page.read_text("utf-8")
    assert missing_in(text) == []
    assert [name for name in OF_A_PLAN.findall(text) if not is_of_a_plan(name)] == []


def test_what_a_docstring_names_exists():
    for file in ROOT.glob("kiwi/**/*.py"):
        quoted = re.findall(r"`([^`\n]+)`", file.read_text("utf-8"))
        assert missing_in(" ".join(quoted)) == [], file


@pytest.mark.parametrize("folder", ["kiwi", "benchmarks", "tests"])
def test_pages_and_headings_that_code_names_exist(folder):
    for file in ROOT.glob(f"{folder}/**/*.py"):
        for page, heading in PAGE_AND_HEADING.findall(file.read_text("utf-8")):
            assert (ROOT / page).exists(), f"{file} names {page}"
            if heading:
                words = " ".join(heading.split())
                assert slug(words) in anchors(ROOT / page), f"{file} names {words!r} of {page}"


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


def is_of_a_plan(name: str) -> bool:
    """Returns whether a plan, its estimate or its compiled program has an attribute. Endings of
    files named `plan` are no attributes."""
    part, _, attribute = name.rpartition(".")
    owner = {"": kiwi.Plan, "estimate": Estimate, "compiled": CompiledProgram}[part]
    known = {field.name for field in fields(owner)}
    return attribute in ("json", "html") or attribute in known or hasattr(owner, attribute)
