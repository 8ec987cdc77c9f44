"""Rows of a measurement, stored in a file. Recorded rows are not measured again."""

import datetime
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from benchmarks.provenance import commit

Row = dict[str, Any]
"""A row as JSON. The ends of names tell bytes and seconds."""


class Book:
    """The rows of one measurement.

    - `path`: the file. The table is beside it, with the ending `.md`.
    - `redone`: keys that begin with one of these are measured again.
    - `module`: the module that was run.
    """

    def __init__(
        self, path: Path, redone: tuple[str, ...] = (), module: str = "benchmarks.tpu"
    ) -> None:
        self._path, self._module = path, module
        recorded = json.loads(path.read_text()) if path.exists() else {}
        self.rows: dict[str, Row] = {
            key: row for key, row in recorded.items() if not (redone and key.startswith(redone))
        }

    def row(self, key: str, measure: Callable[[], Row]) -> Row:
        """Returns the row of a key. Measures and writes it if it is missing."""
        if key not in self.rows:
            self.rows[key] = {**measure(), **_environment(self._module)}
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial = self._path.with_suffix(".partial")
            partial.write_text(json.dumps(self.rows, indent=1) + "\n")
            partial.replace(self._path)
            print(f"{key}: {_without_environment(self.rows[key])}", flush=True)
        return self.rows[key]

    def write_table(self, title: str, table: Iterable[str]) -> None:
        """Writes the rows' environment and the lines of `table` as Markdown."""
        names = ("command", "date", "commit", "kiwi", "jax", "libtpu")
        environment = {n: sorted({str(r[n]) for r in self.rows.values()}) for n in names}
        lines = [
            f"# {title}",
            "",
            *(f"{n}: {', '.join(v)}  " for n, v in environment.items()),
            "",
            *table,
        ]
        self._path.with_suffix(".md").write_text("\n".join(lines).rstrip() + "\n")


def _environment(module: str) -> Row:
    return {
        "command": f"python -m {module} " + " ".join(sys.argv[1:]),
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "kiwi": metadata.version("kiwi-planner"),
        "jax": jax.__version__,
        "libtpu": metadata.version("libtpu"),
    }


def _without_environment(row: Mapping[str, Any]) -> Row:
    return {key: value for key, value in row.items() if key not in _environment("")}
