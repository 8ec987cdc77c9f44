"""JSON files with a header that names their format and its version."""

import contextlib
import errno
import json
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiwi.errors import InvalidArgumentError, KiwiError
from kiwi.messages import topics
from kiwi.system import unwritable


@dataclass(frozen=True)
class FileFormat:
    """A file format: a JSON object with `"format": name` and `"version"` as its first two keys.

    - `version`: the version that is written, and the newest version that is read.
    - `what`: the name of the format in messages.
    - `error`: the type of the error for a file that is not of the format.
    - `ending`: the last characters of every complete file.
    - `again`: the suggestion how to replace a damaged file.
    - `oldest`: the oldest version that is read.
    """

    name: str
    version: int
    what: str
    error: type[KiwiError]
    ending: str
    again: str
    oldest: int = 1

    def write(self, content: bytes, path: str | Path) -> None:
        """Writes a file.

        The new file replaces an old one once it is complete. A pipe or `/dev/stdout` is written to
        directly.

        **Raises:** `error` if the file cannot be written.
        """
        target = path_of(path)
        try:
            _write(content, target)
        except OSError as error:
            raise unwritable(
                f"The {self.what} cannot be written to {path}", error, self.error
            ) from error

    def read(self, path: str | Path) -> dict[str, Any]:
        """The object in the file at `path`.

        **Raises:** as `parse`; `error` if the file cannot be read.
        """
        source = path_of(path)
        try:
            content = source.read_bytes()
        except OSError as error:
            raise self.error(
                f"The {self.what} {path} cannot be read: {error.strerror}.",
                topic=topics.UNREADABLE,
                suggestion="The path of a saved one.",
            ) from error
        return self.parse(content, str(path))

    def parse(self, content: bytes, name: str) -> dict[str, Any]:
        """The object in the content of a file called `name`.

        **Raises:** `error` if the file is of another format, truncated, not JSON, newer than this
        Kiwi, or older than `oldest`.
        """
        text = content.decode("utf-8", errors="replace")
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError) as error:
            if f'"format": "{self.name}"' not in text[:64]:
                raise self._foreign(name, "It is not JSON.") from error
            cut = not text.rstrip().endswith(self.ending)
            raise self.error(
                f"{name} is {'truncated' if cut else 'corrupt'}.",
                topic=topics.DAMAGED_FILE,
                cause=f"It ends in the middle, after {len(content)} bytes." if cut else str(error),
                suggestion=self.again,
            ) from error
        if not isinstance(parsed, dict) or parsed.get("format") != self.name:
            raise self._foreign(name, f'It is JSON, but its "format" is not "{self.name}".')
        version = parsed.get("version")
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
        return parsed

    def _foreign(self, name: str, cause: str) -> KiwiError:
        return self.error(
            f"{name} is not a {self.what} of Kiwi.",
            topic=topics.FOREIGN_FILE,
            cause=cause,
            suggestion=self.again,
        )

    def invalid(self, name: str, cause: str) -> KiwiError:
        """The error for a file with invalid content. `cause`: a text that names the invalid
        content."""
        return self.error(
            f"{name} is not a valid {self.what}.",
            topic=topics.INVALID_FILE,
            cause=cause,
            suggestion=self.again,
        )


def path_of(path: Any) -> Path:
    """Returns a path of the caller.

    **Raises:** `InvalidArgumentError` if it is no path.
    """
    if not isinstance(path, str | os.PathLike) or not path or "\0" in str(path):
        raise InvalidArgumentError(
            f"{path!r} is no path of a file.",
            topic=topics.ARGUMENT,
            suggestion='Pass text such as "plan.json", or a pathlib.Path.',
        )
    return Path(path)


def write_text(text: str, path: str | Path) -> None:
    """Writes a text file, as `FileFormat.write` does.

    **Raises:** `InvalidArgumentError` if the file cannot be written.
    """
    target = path_of(path)
    try:
        _write(text.encode("utf-8"), target)
    except OSError as error:
        raise unwritable(f"{path} cannot be written", error) from error


def check_writable(path: str | Path) -> None:
    """Checks that a file can be written, before work is spent on its content.

    **Raises:** `InvalidArgumentError` if it cannot.
    """
    number = _refusal(path_of(path))
    if number is not None:
        raise unwritable(f"{path} cannot be written", OSError(number, os.strerror(number)))


def _refusal(target: Path) -> int | None:
    """Returns the number of the error that writing a file would give; None if none is known."""
    try:
        if target.is_dir():
            return errno.EISDIR
        if not target.parent.exists():
            return errno.ENOENT
        if not target.parent.is_dir():
            return errno.ENOTDIR
        place = target if target.exists() else target.parent
    except OSError as error:
        return error.errno
    if os.access(place, os.W_OK):
        return None
    return errno.EROFS if os.statvfs(place).f_flag & os.ST_RDONLY else errno.EACCES


def _write(content: bytes, target: Path) -> None:
    stream = _stream_at(target)
    if stream is not None:
        # If the shell redirects to a file, opening the path would write from the file's start.
        with os.fdopen(os.dup(stream), "wb") as file:
            file.write(content)
    elif target.exists() and not target.is_file():
        target.write_bytes(content)
    else:
        _replace(content, target.resolve())


def _stream_at(target: Path) -> int | None:
    """Returns the file descriptor of standard output or standard error, if a path leads to one of
    them."""
    for stream in (sys.stdout, sys.stderr):
        try:
            descriptor = stream.fileno()
            if target.is_symlink() and os.path.samestat(target.stat(), os.fstat(descriptor)):
                stream.flush()
                return descriptor
        except (
            OSError,
            ValueError,
        ):  # The file does not exist, or the stream has no descriptor or is closed.
            continue
    return None


def _replace(content: bytes, target: Path) -> None:
    """Writes a new file, and replaces the old file once the new one is complete."""
    # Threads or processes that write the same file each have a draft of their own.
    writer = f"{os.getpid()}-{threading.get_ident()}"
    draft = target.with_name(f"{target.name}.{writer}.part")
    try:
        draft.write_bytes(content)
        draft.replace(target)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
