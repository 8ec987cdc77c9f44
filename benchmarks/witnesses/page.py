"""`docs/reference/rules.md`, written from the rules and the recorded outcomes of their
witnesses."""

import inspect
from collections.abc import Sequence
from pathlib import Path

from benchmarks.witnesses.records import Record, all_records
from kiwi.targets.registry import TARGETS
from kiwi.targets.rule import Rule
from kiwi.targets.target import Target
from kiwi.targets.witness import Witness

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "rules.md"

_TITLES = {"cpu": "XLA:CPU", "cuda": "XLA:GPU", "tpu": "XLA:TPU"}

_HEAD = """\
# Rules of XLA

Kiwi predicts what XLA makes of a step. A *rule* is one thing that a compiler does: it fuses,
copies, combines or reorders. Each rule is one file of
`kiwi/targets/rules`. A *target* is a list of rules.

Each rule names its *witness*: a small program whose compiled module shows what the rule says. A
control stands beside it, for which the module must not show it. After an upgrade of jax

    pytest -m witness

names the rules that no longer hold. The last columns say what `python -m benchmarks.witnesses`
found with a version of jax: ✓ the module shows it, ✗ it does not, – nobody asked.

This page is generated (`python -m benchmarks.witnesses --page`) and checked by a test.
"""


def page(records: Sequence[Record] | None = None) -> str:
    """Returns the text of the page."""
    known = all_records() if records is None else records
    return "\n".join([_HEAD, *(_section(target, known) for target in TARGETS.values())])


def _section(target: Target, records: Sequence[Record]) -> str:
    versions = [f"jax {record.jax}" for record in records]
    header = ["rule", "what the compiler does", "component", "observed with", "evidence", "witness"]
    rows = [[*header, *versions], ["---"] * (len(header) + len(versions))]
    rows += [_row(target, rule, records) for rule in target.rules]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    compilers = sorted({r.compilers[target.name] for r in records if target.name in r.compilers})
    compiled = f"Witnesses compiled with {', '.join(compilers)}.\n\n" if compilers else ""
    return f"## {_TITLES[target.name]}\n\n{compiled}{table}\n"


def _row(target: Target, rule: Rule, records: Sequence[Record]) -> list[str]:
    witness = rule.witness
    says = witness.says if isinstance(witness, Witness) else f"none: {witness.reason}"
    does = f"{rule.does} *{rule.limits}*" if rule.limits else rule.does
    evidence = ", ".join(f"`{path}`" for path in rule.evidence)
    marks = [_mark(record, target, rule) for record in records]
    name = f"`{rule.name}`"
    return [_cell(t) for t in (name, does, rule.component, rule.observed, evidence, says, *marks)]


def _mark(record: Record, target: Target, rule: Rule) -> str:
    if not isinstance(rule.witness, Witness):
        return ""
    outcome = record.found.get(target.name, {}).get(rule.name)
    return {"holds": "✓", None: "–"}.get(outcome, "✗")


def _cell(text: str) -> str:
    return inspect.cleandoc(text).replace("\n", " ").replace("|", "\\|")
