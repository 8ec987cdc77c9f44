"""Plan files: a document with a header, as JSON.

    {"format": "kiwi-plan", "version": 6, "digest": "...", "timings": {...}, "plan": {...}}

`digest` is the SHA-256 of the canonical text of `plan`, so that a truncated or altered file is
refused. `timings` says where the time of planning went. It is not part of the plan, may be missing,
and is not read. Reading a file parses JSON and does nothing else. No part of a file is executed.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kiwi.errors import KiwiError, PlanFileError
from kiwi.json_file import FileFormat
from kiwi.messages import topics
from kiwi.plans.document import Document

FORMAT = FileFormat(
    "kiwi-plan",
    6,
    "plan file",
    PlanFileError,
    ending="}}",
    again="Save the plan again with plan.save or `kiwi plan --out`.",
    oldest=6,
)


_TEXTS = ("jax", "kiwi")
_LISTS = ("links", "constants", "schedule", "deviations", "notes", "history")
_OBJECTS = (
    *("function", "mesh", "hardware", "options", "arrangement", "corrections"),
    *("arguments", "results", "operators", "estimate", "bounds"),
)
_SECTIONS = dict.fromkeys(_TEXTS, str) | dict.fromkeys(_LISTS, list) | dict.fromkeys(_OBJECTS, dict)


Timings = Mapping[str, Mapping[str, float]]
"""The processor and wall seconds of each stage of planning."""


def dump(document: Document, timings: Timings | None = None) -> bytes:
    """Returns the bytes of a plan file. Equal documents and timings give equal bytes."""
    header: Document = {
        "format": FORMAT.name,
        "version": FORMAT.version,
        "digest": _digest(document),
    }
    if timings:
        header["timings"] = timings
    lines = [json.dumps(header, allow_nan=False)[:-1], ', "plan": ']
    body = json.dumps(document, allow_nan=False, indent=1, ensure_ascii=False)
    return ("".join(lines) + body + "}\n").encode()


def write(document: Document, path: str | Path, timings: Timings | None = None) -> None:
    """Writes a plan file. The new file replaces an existing file once it is complete.

    **Raises:** `PlanFileError` if the file cannot be written.
    """
    FORMAT.write(dump(document, timings), path)


def read(path: str | Path) -> Document:
    """Returns the document of a plan file.

    **Raises:** `PlanFileError` if the file is missing, truncated, altered, of another kind, or of
    another version.
    """
    envelope, name = FORMAT.read(path), str(path)
    document = envelope.get("plan")
    if not isinstance(document, dict) or envelope.get("digest") != _digest(document):
        raise PlanFileError(
            f"{name} was altered after it was saved: its digest does not fit its content.",
            topic=topics.ALTERED_FILE,
            suggestion=f"{FORMAT.again} To change a plan, use plan.what_if.",
        )
    for section, kind in _SECTIONS.items():
        if not isinstance(document.get(section), kind):
            cause = f"its section {section!r} is missing or of the wrong kind"
            raise FORMAT.invalid(name, cause)
    return document


def malformed(error: Exception, name: str) -> KiwiError:
    """Returns the error for a file with parts that cannot be read. `name`: the file's name."""
    reason = error.what if isinstance(error, KiwiError) else f"{type(error).__name__}: {error}"
    return FORMAT.invalid(name, reason)


def _digest(document: Any) -> str:
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
