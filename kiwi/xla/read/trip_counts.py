"""How often the instructions of an HLO module run: once for each iteration of the loops around.

XLA writes the trip count that it found into a `while` (`known_trip_count`); a loop without one, and
each branch of a conditional, counts as running once.
"""

import re
from collections.abc import Iterator

_HEADER = re.compile(r"^(?:ENTRY )?%?(?P<name>[\w.\-]+) \(.*\{$")
_CALLED = re.compile(
    r"\b(?P<role>body|calls|to_apply|condition|true_computation|false_computation)=%([\w.\-]+)"
)
_BRANCHES = re.compile(r"\bbranch_computations=\{(?P<names>[^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(?P<count>\d+)"\}')


def lines_with_runs(hlo_text: str) -> Iterator[tuple[str, int, str]]:
    """Each line of a module's text, with how often its instruction runs, and its computation. Lines
    outside of any computation count once, and have none ("")."""
    computations = _computations(hlo_text)
    runs = _runs(computations)
    for name, lines in computations:
        for line in lines:
            yield line, runs.get(name, 1), name or ""


def _computations(hlo_text: str) -> list[tuple[str | None, list[str]]]:
    """The computations in order, a computation behind those that it calls."""
    found: list[tuple[str | None, list[str]]] = [(None, [])]
    for line in hlo_text.splitlines():
        header = _HEADER.match(line)
        if header is not None:
            found.append((header["name"], []))
        elif line == "}":
            found.append((None, []))
        else:
            found[-1][1].append(line)
    return found


def _runs(computations: list[tuple[str | None, list[str]]]) -> dict[str | None, int]:
    called = {
        name: [pair for line in lines for pair in _called(line)] for name, lines in computations
    }
    inside = {callee for pairs in called.values() for callee, _ in pairs}
    found: dict[str | None, int] = {name: 1 for name in called if name not in inside}
    for name, _ in reversed(computations):
        for callee, times in called.get(name, ()):
            found[callee] = found.get(callee, 0) + times * found.get(name, 1)
    return found


def _called(line: str) -> Iterator[tuple[str, int]]:
    """The computations that an instruction runs, and how often each."""
    trips = _TRIPS.search(line)
    for role, name in _CALLED.findall(line):
        yield name, int(trips["count"]) if trips is not None and role == "body" else 1
    branches = _BRANCHES.search(line)
    if branches is not None:
        for name in branches["names"].split(","):
            yield name.strip().lstrip("%"), 1
