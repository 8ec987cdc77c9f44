"""Rows of results: their keys, and how they are stored."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
"""A row as JSON: bytes, seconds, and errors."""

FREE = "free"


@dataclass(frozen=True)
class Key:
    """The identity of a row.

    - `variant`: "free", "budget-60" for 60 % of the free plan's compiled peak, or a hand-written
      step such as "fsdp/full".
    """

    seed: int
    index: int
    profile: str
    mesh: str
    variant: str

    def __str__(self) -> str:
        return f"{self.seed}/{self.index} {self.profile} {self.mesh} {self.variant}"

    @classmethod
    def parse(cls, text: str) -> "Key":
        """Returns the key that `str` writes as `text`."""
        model, *rest = text.split(" ")
        seed, index = map(int, model.split("/"))
        return cls(seed, index, *rest)

    @property
    def share(self) -> float | None:
        """The budget as a part of the free plan's compiled peak; None for other rows."""
        kind, _, percent = self.variant.partition("-")
        return float(percent) / 100 if kind == "budget" else None

    @property
    def is_by_hand(self) -> bool:
        """Whether the row is a hand-written step, and not a plan."""
        return "/" in self.variant

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        """The number of devices along each axis."""
        return tuple(map(int, self.mesh.split("x")))


@dataclass(frozen=True)
class Asked:
    """The rows that a run measures for each model: profiles, meshes such as "2x4", and variants."""

    profiles: Sequence[str]
    meshes: Sequence[str]
    variants: Sequence[str]

    def keys(self, seed: int, index: int) -> Iterator[Key]:
        """Yields the rows of one model. A budget follows the free plan."""
        for profile in self.profiles:
            for mesh in self.meshes:
                for variant in self.variants:
                    yield Key(seed, index, profile, mesh, variant)


def read_rows(path: Path) -> dict[str, Row]:
    """Returns the rows of a file, by key. If a key has several rows, the last one counts."""
    if not path.exists():
        return {}
    rows = map(json.loads, filter(None, path.read_text().splitlines()))
    return {row.pop("key"): row for row in rows}


def append_row(path: Path, key: Key, row: Row) -> None:
    """Adds a row to a file."""
    with path.open("a") as file:
        file.write(json.dumps({"key": str(key), **row}) + "\n")
