"""The files of `kiwi/` that changed in commits that added or changed a rule of XLA.

    python -m benchmarks.structure.rule_commits

The commits are those since each rule has a file. A commit changed a rule if the code of a rule's
file differs, apart from docstrings and comments.
"""

import ast
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.structure.imports import ROOT

RULES = "kiwi/targets/rules/"
LISTS = tuple(f"kiwi/targets/{name}.py" for name in ("cpu", "gpu", "tpu", "shared"))
"""The lists of the targets' rules, to which every new rule is added."""


@dataclass(frozen=True)
class RuleCommit:
    """A commit that added or changed rules.

    - `rules`: the rules' files.
    - `others`: all other Python files of `kiwi/` whose code differs, without the targets' lists.
    """

    commit: str
    subject: str
    rules: tuple[str, ...]
    others: tuple[str, ...]


def _git(*arguments: str) -> str:
    completed = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
    )
    return completed.stdout


def _code(commit: str, path: str) -> str:
    """Returns a file at a commit without docstrings and comments. A missing file is an empty
    module."""
    text = _git("show", f"{commit}:{path}")
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [part for part in body if not _is_text(part)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def rule_commits(first: str = "") -> list[RuleCommit]:
    """Returns the commits after `first`, oldest first; by default after the commit that made rules
    files."""
    if not first:
        added = _git("log", "--reverse", "--format=%H", "--diff-filter=A", "--", RULES)
        first = added.split()[0]
    lines = _git("log", "--reverse", "--no-merges", "--format=%H %s", f"{first}..", "--", RULES)
    commits = []
    for line in lines.splitlines():
        commit, _, subject = line.partition(" ")
        shown = _git("show", "--format=", "--name-only", commit, "--", "kiwi")
        changed = [
            path
            for path in shown.split()
            if path.endswith(".py") and _code(commit, path) != _code(f"{commit}^", path)
        ]
        rules = tuple(p for p in changed if p.startswith(RULES) and Path(p).stem != "__init__")
        if rules:
            others = tuple(p for p in changed if p not in rules and p not in LISTS)
            commits.append(RuleCommit(commit[:8], subject, rules, others))
    return commits


def main() -> int:
    """Prints one line for each commit, and the files that it changed."""
    for rule_commit in rule_commits():
        print(f"{rule_commit.commit} {rule_commit.subject}")
        for title, paths in (("rules", rule_commit.rules), ("others", rule_commit.others)):
            names = ", ".join(path.removeprefix("kiwi/") for path in paths)
            print(f"    {len(paths)} {title}" + (f": {names}" if paths else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
