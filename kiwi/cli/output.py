"""The command's output: tables and progress for people, JSON for machines."""

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

Show = Callable[..., None]
"""Updates a progress bar. The keyword arguments `description`, `advance`, `completed` and `total`
are as in `rich.progress.Progress.update`."""


class Output:
    """Prints results to standard output, and progress and errors to standard error. `json`: whether
    results are printed as JSON."""

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self._messages = Console(stderr=True, highlight=False, soft_wrap=True)

    def result(self, data: Any, text: str) -> None:
        """Prints `data` as JSON if JSON is asked for, else `text`."""
        if self.json:
            print(json.dumps(data, indent=1, default=str))
        else:
            print(text)

    def note(self, text: str) -> None:
        """Prints a line beside the result, unless JSON is asked for."""
        if not self.json:
            self._messages.print(text, markup=False)

    def written(self, text: str, path: str | None, write: Callable[[str], None]) -> None:
        """Writes a file, if `path` is given, and says so in a line beside the result."""
        if path:
            write(path)
            self.note(f"{text} {path}")

    def error(self, text: str) -> None:
        """Prints a line about an error."""
        self._messages.print(f"kiwi: error: {text}", markup=False)

    @contextlib.contextmanager
    def progress(self, total: int | None = None) -> Iterator[Show]:
        """A context manager that shows a progress bar while its block runs. Nothing is shown if
        standard error is no terminal."""
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn())
        quiet = self.json or not self._messages.is_terminal
        with Progress(
            *columns, TimeElapsedColumn(), console=self._messages, transient=True, disable=quiet
        ) as progress:
            yield functools.partial(progress.update, progress.add_task("", total=total))
