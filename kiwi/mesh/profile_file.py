"""Profile tables as files: readable JSON with a version, checked whole when read.

    {"format": "kiwi-profile", "version": 2,
     "hardware": {...}, "environment": {...} or null, "mesh_shape": [...],
     "operators": [{...}, ...], "collectives": [{...}, ...], "skipped": ["...", ...]}

The keys of each part are the fields of `Hardware`, `Environment`, `OperatorEntry` and
`CollectiveEntry`; all must be there, and no others. Reading a file parses JSON and nothing else.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from kiwi.errors import InvalidArgumentError, ProfileFileError
from kiwi.mesh.hardware import Hardware, Link
from kiwi.mesh.profile_entries import CollectiveEntry, Environment, OperatorEntry

FORMAT = "kiwi-profile"
VERSION = 2

_AGAIN = "Write the table again with ProfileTable.save."
_KEYS = {
    "format",
    "version",
    "hardware",
    "environment",
    "operators",
    "collectives",
    "skipped",
    "mesh_shape",
}

_Table = TypeVar("_Table")


def save_table(content: Mapping[str, Any], path: str | Path) -> None:
    """Writes what a table consists of; an existing file is replaced once the new one is complete.

    **Raises:** `ProfileFileError` if the file cannot be written.
    """
    target = Path(path)
    draft = target.with_name(target.name + ".part")
    try:
        draft.write_text(_file(content), encoding="utf-8")
        draft.replace(target)
    except OSError as error:
        raise ProfileFileError(
            f"The profile cannot be written to {path}: {error.strerror}.",
            suggestion="A path in a folder that exists and may be written to.",
        ) from error


def table_digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of what `save_table` writes."""
    return hashlib.sha256(_file(content).encode()).hexdigest()


def _file(content: Mapping[str, Any]) -> str:
    return _text({"format": FORMAT, "version": VERSION, **content})


def _text(content: Mapping[str, Any]) -> str:
    """JSON with a line for each entry of a list, so that tables can be read and compared."""
    parts = []
    for key, value in content.items():
        text = json.dumps(value, allow_nan=False)
        if isinstance(value, list | tuple) and value:
            rows = ",\n  ".join(json.dumps(entry, allow_nan=False) for entry in value)
            text = f"[\n  {rows}\n ]"
        elif isinstance(value, Mapping):
            text = json.dumps(value, indent=1, allow_nan=False).replace("\n", "\n ")
        parts.append(f' "{key}": {text}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def load_table(path: str | Path, make: Callable[..., _Table]) -> _Table:
    """Reads a table; `make` takes its parts by the names of `ProfileTable`'s fields.

    **Raises:** `ProfileFileError` if the file is missing, truncated, of another kind or of a
    newer version, or if a figure in it is missing or impossible; it says which.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileFileError(
            f"The profile {path} cannot be read: {error}.", suggestion="The path of a saved table."
        ) from error
    try:
        content = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        cut = not text.rstrip().endswith("}")
        raise ProfileFileError(
            f"The profile {path} is {'truncated' if cut else 'not JSON'}.",
            cause=str(error),
            suggestion=_AGAIN,
        ) from error
    _check_header(content, str(path))
    try:
        parts = _parts(_from_version_1(content) if content["version"] == 1 else content)
        return make(**parts, loaded_from=str(path))
    except InvalidArgumentError as error:
        raise _invalid(str(path), error.what) from error


def _check_header(content: Any, name: str) -> None:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ProfileFileError(
            f"{name} is not a profile of Kiwi.", cause=f'Its "format" is not "{FORMAT}".'
        )
    version = content.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise _invalid(name, f"its version is {version!r}")
    if version > VERSION:
        raise ProfileFileError(
            f"{name} has version {version} of the profile format; this Kiwi reads up to {VERSION}.",
            cause="It was saved by a newer Kiwi.",
            suggestion="Update Kiwi, or record the profile again with this one.",
        )


def _invalid(name: str, cause: str) -> ProfileFileError:
    return ProfileFileError(f"{name} is not a valid profile.", cause=cause, suggestion=_AGAIN)


def _parts(content: Mapping[str, Any]) -> dict[str, Any]:
    _check_keys(content, _KEYS, "the table")
    environment = content["environment"]
    operators, collectives = _rows(content, "operators"), _rows(content, "collectives")
    if environment is not None:
        environment = _build(Environment, environment, "environment")
    return {
        "hardware": _hardware(content["hardware"]),
        "operators": tuple(_operator(e, f"operators[{k}]") for k, e in operators),
        "collectives": tuple(_collective(e, f"collectives[{k}]") for k, e in collectives),
        "environment": environment,
        "skipped": tuple(_sentence(s, k) for k, s in _rows(content, "skipped")),
        "mesh_shape": _sizes(content["mesh_shape"], "mesh_shape"),
    }


def _rows(content: Mapping[str, Any], section: str) -> list[tuple[int, Any]]:
    if not isinstance(content[section], list):
        raise InvalidArgumentError(f"{section} is not a list.")
    return list(enumerate(content[section]))


def _from_version_1(content: dict[str, Any]) -> dict[str, Any]:
    """Collectives then were of any axes of a length."""
    entries = content.get("collectives")
    if isinstance(entries, list):
        entries = [e | {"axes": []} if isinstance(e, dict) else e for e in entries]
    return {**content, "collectives": entries, "mesh_shape": [], "version": 2}


def _collective(found: Any, where: str) -> CollectiveEntry:
    if isinstance(found, dict) and "axes" in found:
        found = {**found, "axes": _sizes(found["axes"], f"{where}.axes")}
    return _build(CollectiveEntry, found, where)


def _sizes(found: Any, where: str) -> tuple[int, ...]:
    if not _is_shape(found):
        raise InvalidArgumentError(f"{where} is {found!r}, not a list of whole numbers.")
    return tuple(found)


def _sentence(found: Any, position: int) -> str:
    if not isinstance(found, str):
        raise InvalidArgumentError(f"skipped[{position}] is not a text.")
    return found


def _operator(found: Any, where: str) -> OperatorEntry:
    shapes = found.get("shapes") if isinstance(found, dict) else None
    if shapes is not None:
        if not isinstance(shapes, list) or not all(_is_shape(shape) for shape in shapes):
            raise InvalidArgumentError(f"{where}.shapes is {shapes!r}, not a list of shapes.")
        found = {**found, "shapes": tuple(tuple(shape) for shape in shapes)}
    return _build(OperatorEntry, found, where)


def _is_shape(found: Any) -> bool:
    return isinstance(found, list) and all(type(size) is int for size in found)


def _hardware(found: Any) -> Hardware:
    if not isinstance(found, dict):
        raise InvalidArgumentError("hardware is not an object.")
    links = {
        name: _build(Link, found.get(name), f"hardware.{name}")
        for name in ("intra_link", "inter_link")
    }
    rates = found.get("flops_per_second")
    if not isinstance(rates, dict) or not all(_is_number(rate) for rate in rates.values()):
        raise InvalidArgumentError("hardware.flops_per_second does not give rates by dtype.")
    return _build(Hardware, {**found, **links}, "hardware")


def _build(kind: type[Any], found: Any, where: str) -> Any:
    """The dataclass from an object with just its fields, each of the right kind.

    Only what has a default may be left out: files of an earlier version do not know it.
    """
    if not isinstance(found, dict):
        raise InvalidArgumentError(f"{where} is {found!r}, not an object.")
    kinds = {f.name: str(getattr(f.type, "__name__", f.type)) for f in dataclasses.fields(kind)}
    defaults = {f.name for f in dataclasses.fields(kind) if f.default is not dataclasses.MISSING}
    _check_keys(found, set(kinds) - (defaults - set(found)), where)
    for key, value in found.items():
        if not _fits(value, kinds[key]):
            raise InvalidArgumentError(f"{where}.{key} is {value!r}, not of kind {kinds[key]}.")
    try:
        return kind(**found)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{where}: {error.what}") from error


def _fits(value: Any, kind: str) -> bool:
    """Numbers, texts and truth values; what is made of parts is checked where it is built."""
    checks = {
        "float": _is_number(value),
        "int": type(value) is int,
        "str": isinstance(value, str),
        "bool": isinstance(value, bool),
        "int | None": value is None or type(value) is int,
        "str | None": value is None or isinstance(value, str),
    }
    return checks.get(kind, True)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _check_keys(found: Mapping[str, Any], wanted: set[str], where: str) -> None:
    missing, unknown = sorted(wanted - set(found)), sorted(set(found) - wanted)
    if missing:
        raise InvalidArgumentError(f"{where} lacks {', '.join(missing)}.")
    if unknown:
        raise InvalidArgumentError(f"{where} has unknown keys: {', '.join(unknown)}.")
