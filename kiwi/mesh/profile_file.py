"""Profile tables as files: readable JSON with a version, checked whole when read.

    {"format": "kiwi-profile", "version": 2,
     "hardware": {...}, "environment": {...} or null, "mesh_shape": [...],
     "operators": [{...}, ...], "collectives": [{...}, ...], "skipped": ["...", ...]}

The keys of each part are the fields of `Hardware`, `Environment`, `OperatorEntry` and
`CollectiveEntry`; no others are allowed, and all must be there but those with a default, which
files of an earlier version do not know. Reading a file parses JSON and nothing else.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from kiwi.codec import from_plain
from kiwi.errors import InvalidArgumentError, ProfileFileError
from kiwi.json_file import FileFormat

FORMAT = FileFormat(
    "kiwi-profile",
    2,
    "profile",
    ProfileFileError,
    ending="}",
    again="Write the table again with ProfileTable.save.",
)

_PARTS = ("hardware", "operators", "collectives", "environment", "skipped", "mesh_shape")
_Table = TypeVar("_Table")


def save_table(content: Mapping[str, Any], path: str | Path) -> None:
    """Writes what a table consists of; an existing file is replaced once the new one is complete.

    **Raises:** `ProfileFileError` if the file cannot be written.
    """
    FORMAT.write(_text(content), path)


def table_digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of what `save_table` writes."""
    return hashlib.sha256(_text(content)).hexdigest()


def _text(content: Mapping[str, Any]) -> bytes:
    """JSON with a line for each entry of a list, so that tables can be read and compared."""
    parts = []
    for key, value in {"format": FORMAT.name, "version": FORMAT.version, **content}.items():
        text = json.dumps(value, allow_nan=False)
        if isinstance(value, list) and value:
            rows = ",\n  ".join(json.dumps(entry, allow_nan=False) for entry in value)
            text = f"[\n  {rows}\n ]"
        elif isinstance(value, Mapping):
            text = json.dumps(value, indent=1, allow_nan=False).replace("\n", "\n ")
        parts.append(f' "{key}": {text}')
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode()


def load_table(path: str | Path, kind: type[_Table]) -> _Table:
    """Reads a table; `kind` is `ProfileTable`.

    **Raises:** `ProfileFileError` if the file is missing, truncated, of another kind or of a
    newer version, or if a figure in it is missing or impossible; it says which.
    """
    content = FORMAT.read(path)
    if content["version"] == 1:
        content = _from_version_1(content)
    del content["format"], content["version"]
    missing = [part for part in _PARTS if part not in content]
    if missing:
        raise FORMAT.invalid(str(path), f"The table lacks {', '.join(missing)}.")
    try:
        return from_plain({**content, "loaded_from": str(path)}, kind)
    except InvalidArgumentError as error:
        raise FORMAT.invalid(str(path), error.what) from error


def _from_version_1(content: dict[str, Any]) -> dict[str, Any]:
    """Collectives did not name their axes then."""
    return {**content, "mesh_shape": []}
