"""The profile tables that come with Kiwi, by name.

There is one file per GPU of the hardware catalogue, from data sheets and marked as analytic, and
one file that was recorded on a CPU. The command

    python -m kiwi.mesh.shipped

writes the analytic files. The recorded file names its command in `source`.
"""

from dataclasses import replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from kiwi.mesh.hardware import CATALOGUE, unknown_profile
from kiwi.mesh.profile_table import ProfileTable

_FOLDER = "profiles"


def shipped_names() -> list[str]:
    """Returns the sorted names of all tables that come with Kiwi."""
    return sorted(file.name.removesuffix(".json") for file in _folder().iterdir())


def table_names() -> list[str]:
    """Returns the names of all profiles: the catalogue's first, then the names of other tables."""
    return list(dict.fromkeys([*CATALOGUE, *shipped_names()]))


def table_named(name: str) -> ProfileTable:
    """Returns the table with this name that comes with Kiwi, or a table without measurements for
    the catalogue's entry.

    **Raises:** `UnknownProfileError` if there is neither.
    """
    if name in shipped_names():
        with resources.as_file(_folder() / f"{name}.json") as path:
            return replace(ProfileTable.load(path), loaded_from=name)
    if name in CATALOGUE:
        return ProfileTable(CATALOGUE[name])
    raise unknown_profile(name, table_names())


def find_table(name: str | Path) -> ProfileTable:
    """Returns a saved table by its path (a `Path`, or a text that ends with ".json"), or a table by
    its name.

    **Raises:** `ProfileFileError` if the file cannot be used; `UnknownProfileError` if no table has
    the name.
    """
    if isinstance(name, Path) or str(name).endswith(".json"):
        return ProfileTable.load(name)
    return table_named(name)


def write_analytic(folder: Path) -> None:
    """Writes the shipped tables of the catalogue's devices to `folder`.

    **Raises:** `ProfileFileError` if they cannot be written.
    """
    for name in shipped_names():
        if name in CATALOGUE:
            ProfileTable(CATALOGUE[name]).save(folder / f"{name}.json")


def _folder() -> Traversable:
    return resources.files("kiwi.mesh") / _FOLDER


if __name__ == "__main__":
    with resources.as_file(_folder()) as folder:
        write_analytic(folder)
