"""The folder that a search writes while it runs, and from which it can be resumed.

`rows.jsonl` has a header and one line for each outcome. A file such as `plan-v5e-2x4.json` is the
plan file of a configuration. A line is written after its plan file, so an interruption loses only
the running tasks.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from kiwi.codec import from_plain, to_plain
from kiwi.configurations.best_first import Task
from kiwi.configurations.configuration import Configuration, Outcome
from kiwi.configurations.tasks import Found, Request, packed, unpacked
from kiwi.errors import InvalidArgumentError, KiwiError
from kiwi.messages import topics
from kiwi.plans.file import read, write
from kiwi.system import unwritable
from kiwi.version import VERSION

ROWS = "rows.jsonl"
FORMAT = "kiwi-search"


class Journal:
    """The folder of one search. Without a folder, nothing is kept.

    - `known`: the outcomes that the folder records.
    - `files`: the names of plan files, by the number of the configuration.

    **Raises:** `InvalidArgumentError` if the folder belongs to another search, or cannot be
    written.
    """

    def __init__(
        self, folder: str | Path | None, request: Request, numbers: Mapping[Configuration, int]
    ) -> None:
        self._folder = None if folder is None else Path(folder)
        self._configurations = {number: configuration for configuration, number in numbers.items()}
        self.files: dict[int, str] = {}
        self.known: dict[Task, Found] = {}
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._open(self._folder, _header(request), numbers)
            except OSError as error:
                raise unwritable(f"The search cannot be kept in {folder}", error) from error

    def note(self, task: Task, found: Found) -> None:
        """Records the outcome of a task.

        **Raises:** `InvalidArgumentError` if the folder can no longer be written.
        """
        if self._folder is None:
            return
        number = task[1]
        if found.packed is not None:
            name = f"plan-{_place(self._configurations[number])}.json"
            write(unpacked(found.packed), self._folder / name)
            self.files[number] = name
        line = {
            "configuration": to_plain(self._configurations[number]),
            "outcome": to_plain(found.outcome),
            "plan": self.files.get(number) if found.packed is not None else None,
        }
        try:
            self._append(self._folder, line)
        except OSError as error:
            raise unwritable(f"The search cannot be kept in {self._folder}", error) from error

    def _open(
        self, folder: Path, header: dict[str, Any], numbers: Mapping[Configuration, int]
    ) -> None:
        lines = _lines(folder / ROWS)
        if not lines:
            (folder / ROWS).write_text("")
            self._append(folder, header)
        elif lines[0] != header:
            raise InvalidArgumentError(
                f"{folder} has another search.",
                topic=topics.OTHER_SEARCH,
                cause=f"Of {_difference(lines[0], header)}.",
            )
        if not (folder / ROWS).read_text(encoding="utf-8").endswith("\n"):
            self._write(folder, "\n")  # The last line was cut off.
        for line in lines[1:]:
            self._take(folder, line, numbers)

    def _take(
        self, folder: Path, line: dict[str, Any], numbers: Mapping[Configuration, int]
    ) -> None:
        """Reads a recorded outcome. Configurations that do not belong to this search stay in the
        folder, but are not used."""
        try:
            number = numbers.get(from_plain(line["configuration"], Configuration))
            outcome = from_plain(line["outcome"], Outcome)
            content = None if line["plan"] is None else packed(read(folder / line["plan"]))
        except (KeyError, TypeError, KiwiError):
            return  # The task runs again.
        if number is None:
            return
        if line["plan"] is not None:
            self.files[number] = line["plan"]
        self.known[outcome.stage, number] = Found(outcome, content)

    def _append(self, folder: Path, line: dict[str, Any]) -> None:
        self._write(folder, json.dumps(line, allow_nan=False) + "\n")

    def _write(self, folder: Path, text: str) -> None:
        with open(folder / ROWS, "a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())


def _place(configuration: Configuration) -> str:
    """Returns the part of a file name that identifies a configuration: letters, digits, dots,
    dashes and underscores."""
    mesh = "x".join(map(str, configuration.mesh_shape))
    numbers = configuration.batch_size, configuration.microbatches, configuration.stages
    name = "-".join([configuration.profile, mesh, *(str(n) for n in numbers if n is not None)])
    return "".join(
        character if character.isalnum() or character in "-." else "_" for character in name
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a file, without incomplete ones; none if there is no file."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return lines


def _header(request: Request) -> dict[str, Any]:
    options = {name: repr(value) for name, value in sorted(request.options.items())}
    options.pop("on_progress", None)
    return {
        "format": FORMAT,
        "version": 1,
        "kiwi": VERSION,
        "jax": jax.__version__,
        "make_step": request.maker.name,
        "options": options,
    }


def _difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    names = [name for name in new if old.get(name) != new[name]]
    return ", ".join(f"{name} {old.get(name)}" for name in names)
