"""The keys of rows, and how rows are stored."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
FREE, NUMBERS = "free", "numbers"


@dataclass(frozen=True)
class Key:
    """The identity of a row.

    - `profile`: hardware, or "numbers" for the small copy on CPU devices.
    - `budget`: "free", or a percentage of the free plan's compiled peak such as "60".
    """

    program: str
    profile: str
    budget: str

    def __str__(self) -> str:
        return f"{self.program} {self.profile} {self.budget}"

    @classmethod
    def parse(cls, text: str) -> "Key":
        """Returns the key that `str` writes as `text`."""
        return cls(*text.split(" "))

    @property
    def is_numbers(self) -> bool:
        """Whether the row compares numbers."""
        return self.profile == NUMBERS

    @property
    def share(self) -> float | None:
        """The budget as a part of the free plan's compiled peak; None for no budget."""
        return None if self.budget == FREE else float(self.budget) / 100

    @property
    def free(self) -> "Key":
        """The row of the free plan, whose peak the budget is a share of."""
        return Key(self.program, self.profile, FREE)


def read_rows(path: Path) -> dict[str, Row]:
    """Returns the rows of a file by key; no rows if the file does not exist."""
    return json.loads(path.read_text())["rows"] if path.exists() else {}


def write_rows(path: Path, rows: dict[str, Row], command: str) -> None:
    """Writes all rows, sorted by key, one per line."""
    lines = [f"  {json.dumps(key)}: {json.dumps(rows[key])}" for key in sorted(rows)]
    body = ",\n".join(lines)
    path.write_text(f'{{\n "command": {json.dumps(command)},\n "rows": {{\n{body}\n }}\n}}\n')
