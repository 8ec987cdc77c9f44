"""Every code block of the documentation runs.

The blocks of a page run in order, in a folder of their own and one namespace:

- `python` is executed; with a title it is written to a file of that name instead;
- `console` lines that begin with `$ kiwi` are given to the command, which must succeed, or may
  answer "no" where the line ends with `|| true`;
- `text` is left alone.

The pages share a cache of plans, as on a reader's machine. README and the first steps plan one
step, each by the command and in the program: it is searched once.
"""

import re
import shlex
import sys
from pathlib import Path

import pytest

from kiwi.cli.main import main
from kiwi.plans.plan_cache import FOLDER_VARIABLE

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("docs/**/*.md")), ROOT / "README.md"]
BLOCK = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r'title="(?P<name>[^"]+)"')


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(m["info"].strip(), m["code"]) for m in BLOCK.finditer(page.read_text("utf-8"))]


WITH_CODE = [page for page in PAGES if blocks(page)]


@pytest.fixture(scope="module")
def plan_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("plans")


@pytest.mark.parametrize("page", WITH_CODE, ids=[page.stem for page in WITH_CODE])
@pytest.mark.filterwarnings("ignore:Matplotlib is currently using agg")
def test_the_code_of_a_page_runs(page, plan_cache, tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(plan_cache))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in written(page):  # another test's file of the same name
        monkeypatch.delitem(sys.modules, name, raising=False)
    before = set(sys.modules)
    namespace: dict[str, object] = {"__name__": "__page__"}
    try:
        for info, code in blocks(page):
            run(info, code, namespace, page)
    finally:
        for name in set(sys.modules) - before:
            if getattr(sys.modules[name], "__file__", None) in own_files(tmp_path):
                del sys.modules[name]


def written(page: Path) -> list[str]:
    """The names of the modules that a page writes."""
    titles = (TITLE.search(info) for info, _ in blocks(page))
    return [Path(title["name"]).stem for title in titles if title is not None]


def own_files(folder: Path) -> set[str]:
    return {str(path) for path in folder.glob("*.py")} | {path.name for path in folder.glob("*.py")}


def run(info: str, code: str, namespace: dict[str, object], page: Path) -> None:
    title = TITLE.search(info)
    if title is not None:
        Path(title["name"]).write_text(code)
    elif info == "python":
        exec(compile(code, str(page), "exec"), namespace)
    elif info == "console":
        for line in code.splitlines():
            command(line)
    else:
        assert info == "text", f"{page.name} has a block of kind {info!r}"


def command(line: str) -> None:
    assert line.startswith("$ kiwi "), line
    words = shlex.split(line[2:])
    allowed = {0}
    if words[-2:] == ["||", "true"]:
        words, allowed = words[:-2], {0, 1}
    assert main(words[1:]) in allowed, line


def test_the_pages_of_the_site_are_those_in_the_folder():
    named = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = ROOT.glob("docs/**/*.md")
    assert named == {str(page.relative_to(ROOT / "docs")) for page in pages}


def test_most_pages_have_code():
    assert len(WITH_CODE) >= 9
