"""JSON files with a header that names their format and its version."""

import json
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiwi.errors import InvalidArgumentError, KiwiError
from kiwi.messages import topics


@dataclass(frozen=True)
class FileFormat:
    """A file format: an object with `"format": name` and `"version"` as its first two keys.

    - `what`: the format in words; `error`: raised for a file that is not of it.
    - `ending`: the last characters of every complete file.
    - `again`: how a damaged file is replaced.
    - `oldest`: the first version that is read. Older ones were never released.
    """

    name: str
    version: int
    what: str
    error: type[KiwiError]
    ending: str
    again: str
    oldest: int = 1

    def write(self, content: bytes, path: str | Path) -> None:
        """Writes a file, or raises `error`.

        The new file replaces an old one once it is complete. A pipe or `/dev/stdout` is written to
        directly.
        """
        try:
            _write(content, Path(path))
        except OSError as error:
            raise self.error(
                f"The {self.what} cannot be written to {path}: {error.strerror}.",
                topic=topics.UNWRITABLE,
            ) from error

    def read(self, path: str | Path) -> dict[str, Any]:
        """The content of the file at `path`, see `parse`; raises `error`, also if the file cannot
        be read."""
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise self.error(
                f"The {self.what} {path} cannot be read: {error.strerror}.",
                topic=topics.UNREADABLE,
                suggestion="The path of a saved one.",
            ) from error
        return self.parse(content, str(path))

    def parse(self, content: bytes, name: str) -> dict[str, Any]:
        """The object in a file called `name`.

        **Raises:** `error` if the file is of another format, truncated, no JSON, newer than this
        Kiwi, or older than `oldest`.
        """
        text = content.decode("utf-8", errors="replace")
        try:
            found = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            if f'"format": "{self.name}"' not in text[:64]:
                raise self._foreign(name, "It is not JSON.") from error
            cut = not text.rstrip().endswith(self.ending)
            raise self.error(
                f"{name} is {'truncated' if cut else 'corrupt'}.",
                topic=topics.DAMAGED_FILE,
                cause=f"It ends in the middle, after {len(content)} bytes." if cut else str(error),
                suggestion=self.again,
            ) from error
        if not isinstance(found, dict) or found.get("format") != self.name:
            raise self._foreign(name, f'It is JSON, but its "format" is not "{self.name}".')
        version = found.get("version")
        if type(version) is not int or version < 1:
            raise self.invalid(name, f"its version is {version!r}")
        if version > self.version:
            raise self.error(
                f"{name} has version {version} of the {self.name.removeprefix('kiwi-')} format; "
                f"this Kiwi reads up to {self.version}.",
                topic=topics.NEWER_FILE,
            )
        if version < self.oldest:
            raise self.error(
                f"{name} has version {version} of the {self.name.removeprefix('kiwi-')} format; "
                f"this Kiwi reads {self.oldest} to {self.version}.",
                topic=topics.OLDER_FILE,
                suggestion=self.again,
            )
        return found

    def _foreign(self, name: str, cause: str) -> KiwiError:
        return self.error(
            f"{name} is not a {self.what} of Kiwi.",
            topic=topics.FOREIGN_FILE,
            cause=cause,
            suggestion=self.again,
        )

    def invalid(self, name: str, cause: str) -> KiwiError:
        """The error for a file in which something cannot be understood."""
        return self.error(
            f"{name} is not a valid {self.what}.",
            topic=topics.INVALID_FILE,
            cause=cause,
            suggestion=self.again,
        )


def write_text(text: str, path: str | Path) -> None:
    """Writes a file; raises `InvalidArgumentError` where that is not possible."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidArgumentError(
            f"{path} cannot be written: {error.strerror}.", topic=topics.UNWRITABLE
        ) from error


def check_writable(path: str | Path) -> None:
    """Raises `InvalidArgumentError` if a file cannot be written, before work is spent on its
    content."""
    target = Path(path)
    reason = None
    if target.is_dir():
        reason = "it is a folder"
    elif not target.parent.is_dir():
        reason = f"there is no folder {target.parent}"
    elif not os.access(target if target.exists() else target.parent, os.W_OK):
        reason = "permission denied"
    if reason is not None:
        raise InvalidArgumentError(f"{path} cannot be written: {reason}.", topic=topics.UNWRITABLE)


def _write(content: bytes, target: Path) -> None:
    stream = _stream_at(target)
    if stream is not None:
        # If the shell redirects to the file, opening it by its path would write from its start.
        with os.fdopen(os.dup(stream), "wb") as file:
            file.write(content)
    elif target.exists() and not target.is_file():
        target.write_bytes(content)
    else:
        _replace(content, target.resolve())


def _stream_at(target: Path) -> int | None:
    """The file descriptor of standard output or standard error, if a path leads to one of them."""
    for stream in (sys.stdout, sys.stderr):
        try:
            descriptor = stream.fileno()
            if target.is_symlink() and os.path.samestat(target.stat(), os.fstat(descriptor)):
                stream.flush()
                return descriptor
        except (
            OSError,
            ValueError,
        ):  # There is no such file, or the stream has no descriptor or is closed.
            continue
    return None


def _replace(content: bytes, target: Path) -> None:
    """Replaces a file once the new one is complete."""
    # Two threads or processes that write one file each have a draft of their own.
    own = f"{os.getpid()}-{threading.get_ident()}"
    draft = target.with_name(f"{target.name}.{own}.part")
    draft.write_bytes(content)
    draft.replace(target)
