"""Plan files: a document with a header, as JSON.

    {"format": "kiwi-plan", "version": 2, "digest": "...", "plan": {...}}

`digest` is the SHA-256 of the canonical text of `plan`: a file that was cut off or altered is
refused. Reading a file parses JSON and nothing else; no part of it is ever executed.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kiwi.errors import PlanFileError
from kiwi.plans.document import Document

FORMAT = "kiwi-plan"
VERSION = 2


def _without_kept_copies(document: Document) -> Document:
    """From version 1, in which every reader made its own copies."""
    operators = {k: {**o, "kept_reads": []} for k, o in document["operators"].items()}
    return {**document, "operators": operators}


UPGRADES: dict[int, Callable[[Document], Document]] = {1: _without_kept_copies}
"""By version, what turns a document of that version into one of the next."""

_AGAIN = "Save the plan again with plan.save(path)."
_SECTIONS = {
    "jax": str,
    "kiwi": str,
    "function": dict,
    "mesh": dict,
    "hardware": dict,
    "links": list,
    "options": dict,
    "arguments": dict,
    "constants": list,
    "results": dict,
    "operators": dict,
    "schedule": list,
    "estimate": dict,
    "bounds": dict,
    "notes": list,
}


def dump(document: Document) -> bytes:
    """The bytes of a plan file; equal documents give equal bytes."""
    header = {"format": FORMAT, "version": VERSION, "digest": _digest(document)}
    lines = [json.dumps(header, allow_nan=False)[:-1], ', "plan": ']
    body = json.dumps(document, allow_nan=False, indent=1, ensure_ascii=False)
    return ("".join(lines) + body + "}\n").encode()


def write(document: Document, path: str | Path) -> None:
    """Writes a plan file; an existing one is replaced once the new one is complete."""
    target = Path(path)
    draft = target.with_name(target.name + ".part")
    try:
        draft.write_bytes(dump(document))
        draft.replace(target)
    except OSError as error:
        raise PlanFileError(
            f"The plan cannot be written to {path}: {error.strerror}.",
            suggestion="A path in a folder that exists and may be written to.",
        ) from error


def read(path: str | Path) -> Document:
    """The document of a plan file.

    **Raises:** `PlanFileError` if the file is missing, truncated, altered, of another kind, or
    of a version newer than this one.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise PlanFileError(
            f"The plan file {path} cannot be read: {error.strerror}.",
            suggestion="The path that plan.save or `kiwi plan --out` wrote to.",
        ) from error
    return parse(content, str(path))


def parse(content: bytes, name: str) -> Document:
    """The document in the bytes of a plan file called `name`; raises as `read`."""
    envelope = _json(content, name)
    if not isinstance(envelope, dict) or envelope.get("format") != FORMAT:
        raise PlanFileError(
            f"{name} is not a plan file of Kiwi.",
            cause='It is JSON, but its "format" is not "kiwi-plan".',
            suggestion="A file that plan.save or `kiwi plan --out` wrote.",
        )
    version, document = envelope.get("version"), envelope.get("plan")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise _malformed(name, f"its version is {version!r}")
    if version > VERSION:
        raise PlanFileError(
            f"{name} has version {version} of the plan format; this Kiwi reads up to {VERSION}.",
            cause="It was saved by a newer Kiwi.",
            suggestion="Update Kiwi, or plan again with this one.",
        )
    if not isinstance(document, dict) or envelope.get("digest") != _digest(document):
        raise PlanFileError(
            f"{name} was altered after it was saved: its digest does not fit its content.",
            cause="A disk error, a merge, or an edit by hand.",
            suggestion=_AGAIN + " To change a plan, use plan.what_if.",
        )
    for step in range(version, VERSION):
        document = UPGRADES[step](document)
    for section, kind in _SECTIONS.items():
        if not isinstance(document.get(section), kind):
            raise _malformed(name, f"its section {section!r} is missing or of the wrong kind")
    return document


def malformed(error: Exception, name: str) -> PlanFileError:
    """The error for a file whose parts cannot be understood."""
    return _malformed(name, f"{type(error).__name__}: {error}")


def _malformed(name: str, cause: str) -> PlanFileError:
    return PlanFileError(f"{name} is not a valid plan file.", cause=cause, suggestion=_AGAIN)


def _json(content: bytes, name: str) -> Any:
    text = content.decode("utf-8", errors="replace")
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        if not text.startswith(f'{{"format": "{FORMAT}"'):
            raise PlanFileError(
                f"{name} is not a plan file of Kiwi.",
                cause="It is not JSON.",
                suggestion="A file that plan.save or `kiwi plan --out` wrote.",
            ) from error
        cut = not text.rstrip().endswith("}}")
        raise PlanFileError(
            f"{name} is truncated." if cut else f"{name} is corrupt.",
            cause=f"It ends in the middle, after {len(content)} bytes." if cut else str(error),
            suggestion=_AGAIN,
        ) from error


def _digest(document: Any) -> str:
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
