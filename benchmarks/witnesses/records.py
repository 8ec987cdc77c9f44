"""The outcomes of the witnesses of all rules, by version of jax: a file for each in `results/`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax

from kiwi.errors import CompilerUnavailableError
from kiwi.targets.registry import TARGETS
from kiwi.targets.witnessed import outcomes, witnessed_rules

RESULTS = Path(__file__).parent / "results"

HOLDS, FAILS, ALSO_SHOWN = "holds", "fails", "control shows it"
"""The outcomes of a witness."""


@dataclass(frozen=True)
class Record:
    """The outcomes with one version of jax.

    - `compilers`: by target, the distribution that contains the compiler, with its version.
    - `found`: by target and rule, one of `HOLDS`, `FAILS` and `ALSO_SHOWN`. Targets whose compiler
      was not installed are missing.
    """

    jax: str
    compilers: Mapping[str, str]
    found: Mapping[str, Mapping[str, str]]


def recorded(targets: Sequence[str]) -> Record:
    """Compiles the witnesses of some targets with the installed compilers, and returns their
    outcomes."""
    outcomes_of_targets, compilers = {}, {}
    for name in targets:
        target = TARGETS[name]
        try:
            outcomes_of_rules = outcomes(target, [rule.name for rule in witnessed_rules(target)])
        except CompilerUnavailableError as error:
            print(error.what)
            continue
        compilers[name] = target.compiler.version
        outcomes_of_targets[name] = {
            rule: (HOLDS if outcome.is_refused else ALSO_SHOWN) if outcome.holds else FAILS
            for rule, outcome in outcomes_of_rules.items()
        }
        for rule, outcome in outcomes_of_rules.items():
            if not outcome.holds:
                print(f"{name} {rule} fails:\n{outcome.found}\n")
    return Record(jax.__version__, compilers, outcomes_of_targets)


def saved(record: Record) -> Path:
    """Writes a record, and returns its path. Targets that the record lacks stay as in an earlier
    record of the same jax."""
    path = RESULTS / f"jax-{record.jax}.json"
    before = read(path) if path.exists() else Record(record.jax, {}, {})
    content = {
        "jax": record.jax,
        "compilers": {**before.compilers, **record.compilers},
        "found": {**before.found, **record.found},
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def read(path: Path) -> Record:
    """Returns a saved record."""
    return Record(**json.loads(path.read_text()))


def all_records() -> tuple[Record, ...]:
    """Returns the records of all versions of jax, oldest first."""
    records = (read(path) for path in RESULTS.glob("jax-*.json"))
    return tuple(sorted(records, key=lambda record: [*map(int, record.jax.split("."))]))
