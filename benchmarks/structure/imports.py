"""Modules, imports and layers of `kiwi/`.

An import counts at the top of a module, inside a function and under TYPE_CHECKING. The layers are
the layers of import-linter's contract in `pyproject.toml`.
"""

import ast
import functools
import tomllib
from collections.abc import Iterator, Mapping, Sequence, Set
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]

Imports = Mapping[str, Set[str]]
"""For each module, the modules of `kiwi` that it imports."""


@functools.cache
def sources() -> Mapping[str, Path]:
    """Returns the file of each module of `kiwi`. A package's `__init__` has the package's name."""
    files = sorted((ROOT / "kiwi").rglob("*.py"))
    return {_name(file): file for file in files}


def _name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def imports() -> Imports:
    """Returns the imports of each module. `from kiwi.mesh import Link` imports the package
    `kiwi.mesh`."""
    return {module: frozenset(_imported(module)) for module in sources()}


def _imported(module: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(sources()[module].read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            below = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in sources() else node.module for name in below]
        else:
            continue
        yield from (name for name in names if name in sources() and name != module)


def circles(edges: Imports) -> list[list[str]]:
    """Returns the strongly connected components of more than one module (Tarjan, 1972)."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(module: str) -> None:
        numbers[module] = lowest[module] = len(numbers)
        stack.append(module)
        for other in sorted(edges[module]):
            if other not in numbers:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], numbers[other])
        if lowest[module] == numbers[module]:
            start = stack.index(module)
            if len(stack) - start > 1:
                components.append(sorted(stack[start:]))
            del stack[start:]

    for module in edges:
        if module not in numbers:
            visit(module)
    return components


def layers() -> Sequence[Sequence[str]]:
    """Returns the rooms from the highest layer to the lowest. Rooms of one layer are in one
    list."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    (listed,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[name.strip(" ()") for name in layer.split("|")] for layer in listed]


def room(module: str) -> str:
    """Returns the room of a module: the part of its name directly below `kiwi`."""
    return module.split(".")[1] if "." in module else "__init__"


@functools.cache
def heights() -> Mapping[str, int]:
    """Returns, for each module, the length of the longest chain of imports below it. There must be
    no circles."""
    height_of: dict[str, int] = {}
    for module in TopologicalSorter(imports()).static_order():
        height_of[module] = max((height_of[other] + 1 for other in imports()[module]), default=0)
    return height_of


def count_lines() -> int:
    """Returns the number of lines of all sources."""
    return sum(len(file.read_text().splitlines()) for file in sources().values())


def files_in_folders() -> Mapping[Path, int]:
    """Returns, for each folder, the number of modules directly in it."""
    folders = [file.parent for file in sources().values()]
    return {folder: folders.count(folder) for folder in set(folders)}
