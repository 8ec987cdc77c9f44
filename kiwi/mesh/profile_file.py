"""Profile tables as files: readable JSON with a version, checked whole when read.

    {"format": "kiwi-profile", "version": 2,
     "hardware": {...}, "environment": {...} or null, "mesh_shape": [...],
     "operators": [{...}, ...], "collectives": [{...}, ...], "skipped": ["...", ...]}

The keys of each part are the fields of `Hardware`, `Environment`, `OperatorEntry` and
`CollectiveEntry`; no others are allowed, and all must be there but those with a default, which
files of an earlier version do not know. Reading a file parses JSON and nothing else.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kiwi.errors import ProfileFileError
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


def text_of(content: Mapping[str, Any]) -> bytes:
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


def read_content(path: str | Path) -> dict[str, Any]:
    """What `text_of` was given, of this version or an older one.

    **Raises:** `ProfileFileError` if the file is missing, truncated, of another kind, of a newer
    version, or lacks a part.
    """
    content = FORMAT.read(path)
    if content["version"] == 1:  # Collectives did not name their axes then.
        content["mesh_shape"] = []
    del content["format"], content["version"]
    missing = [part for part in _PARTS if part not in content]
    if missing:
        raise FORMAT.invalid(str(path), f"The table lacks {', '.join(missing)}.")
    return content
