"""Every code block of the documentation runs.

The blocks of a page run in order, in one folder and one namespace per page:

- `python` is executed; with a title it is compiled, and written to a file of that name;
- `console` lines that begin with `$ kiwi` are given to the command, which must succeed, or may
  answer "no" if the line ends with `|| true`;
- `yaml` is parsed, `bash` is checked for its syntax: both are for clusters;
- `json` has a title, is parsed, and written;
- `text` is ignored.

Files for several hosts are only compiled and written: they need other processes, such as those of
`tests/programs/test_distributed.py`.

The pages share a cache of plans, as on a reader's machine.
"""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kiwi.cli.main import main
from kiwi.plans.plan_cache import FOLDER_VARIABLE
from tests.docs.pages import DOCS, PAGES, ROOT, blocks, name_of

TITLE = re.compile(r'title="(?P<name>[^"]+)"')
WITH_CODE = [page for page in PAGES if blocks(page)]


@pytest.fixture(scope="module")
def plan_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("plans")


@pytest.mark.parametrize("page", WITH_CODE, ids=map(name_of, WITH_CODE))
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
    """Returns the names of the modules that a page writes."""
    titles = (TITLE.search(info) for info, _ in blocks(page))
    return [Path(title["name"]).stem for title in titles if title is not None]


def own_files(folder: Path) -> set[str]:
    return {str(path) for path in folder.glob("*.py")} | {path.name for path in folder.glob("*.py")}


def run(info: str, code: str, namespace: dict[str, object], page: Path) -> None:
    kind, title = info.partition(" ")[0], TITLE.search(info)
    if title is not None:
        Path(title["name"]).write_text(code)
    if kind == "python":
        compiled = compile(code, str(page), "exec")
        if title is None:
            exec(compiled, namespace)
    elif kind == "json":
        json.loads(code)
    elif kind == "yaml":
        assert all(isinstance(document, dict) for document in yaml.safe_load_all(code))
    elif kind == "bash":
        subprocess.run(["bash", "-n"], input=code, text=True, check=True)
    elif kind == "console":
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
    assert named == {page.relative_to(DOCS).as_posix() for page in DOCS.glob("**/*.md")}


def test_most_pages_have_code():
    taught = [page for page in WITH_CODE if "evidence" not in page.parts]
    assert len(taught) >= 25
