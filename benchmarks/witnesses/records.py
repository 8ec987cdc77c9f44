"""What became of the witnesses of all rules, by version of jax: a file for each in `results/`."""

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
"""What can become of a witness."""


@dataclass(frozen=True)
class Record:
    """What one version of jax showed.

    - `compilers`: by target, the distribution that brings the compiler, with its version.
    - `found`: by target and rule, one of `HOLDS`, `FAILS` and `ALSO_SHOWN`; without the targets
      whose compiler was not installed.
    """

    jax: str
    compilers: Mapping[str, str]
    found: Mapping[str, Mapping[str, str]]


def recorded(targets: Sequence[str]) -> Record:
    """Compiles the witnesses of some targets with what is installed."""
    found, compilers = {}, {}
    for name in targets:
        target = TARGETS[name]
        try:
            shown = outcomes(target, [rule.name for rule in witnessed_rules(target)])
        except CompilerUnavailableError as error:
            print(error.what)
            continue
        compilers[name] = target.compiler.version
        found[name] = {
            rule: (HOLDS if o.is_refused else ALSO_SHOWN) if o.holds else FAILS
            for rule, o in shown.items()
        }
        for rule, o in shown.items():
            if not o.holds:
                print(f"{name} {rule} fails:\n{o.found}\n")
    return Record(jax.__version__, compilers, found)


def saved(record: Record) -> Path:
    """Writes a record; targets that it lacks stay as an earlier one of the same jax has them."""
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
    """A record that was saved."""
    return Record(**json.loads(path.read_text()))


def all_records() -> tuple[Record, ...]:
    """Those of all versions of jax, the oldest first."""
    records = (read(path) for path in RESULTS.glob("jax-*.json"))
    return tuple(sorted(records, key=lambda record: [*map(int, record.jax.split("."))]))
