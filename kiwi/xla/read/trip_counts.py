"""How often the instructions of an HLO module run: once for each iteration of the loops around.

XLA:CPU and XLA:GPU write the trip count that they found into a `while` (`known_trip_count`).
XLA:TPU writes none: there it is the difference of the constants that a loop's counter starts from
and is compared with, as `jax.lax.scan` counts. A loop with neither, and each branch of a
conditional, counts as running once.
"""

import re
from collections.abc import Iterator

_HEADER = re.compile(r"^(?:ENTRY )?%?(?P<name>[\w.\-]+) \(.*\{$")
_CALLED = re.compile(
    r"\b(?P<role>body|calls|to_apply|condition|true_computation|false_computation)=%([\w.\-]+)"
)
_BRANCHES = re.compile(r"\bbranch_computations=\{(?P<names>[^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(?P<count>\d+)"\}')
_INSTRUCTION = re.compile(
    r"^ *(?:ROOT )?%?(?P<name>[\w.\-]+) = .*? (?P<opcode>[a-z][\w\-]*)\((?P<operands>[^)]*)\)"
)
_CONDITION = re.compile(r" while\(.*\bcondition=%(?P<name>[\w.\-]+)")
_NAMES = re.compile(r"%([\w.\-]+)")
_POSITION = re.compile(r"\bindex=(?P<position>\d+)")
_ROOT = "ROOT "


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
    loops = _Loops(computations)
    called = {
        name: [pair for line in lines for pair in _called(line, loops)]
        for name, lines in computations
    }
    inside = {callee for pairs in called.values() for callee, _ in pairs}
    found: dict[str | None, int] = {name: 1 for name in called if name not in inside}
    for name, _ in reversed(computations):
        for callee, times in called.get(name, ()):
            found[callee] = found.get(callee, 0) + times * found.get(name, 1)
    return found


def _called(line: str, loops: "_Loops") -> Iterator[tuple[str, int]]:
    """The computations that an instruction runs, and how often each."""
    for role, name in _CALLED.findall(line):
        yield name, loops.trips(line) if role == "body" else 1
    branches = _BRANCHES.search(line)
    if branches is not None:
        for name in branches["names"].split(","):
            yield name.strip().lstrip("%"), 1


class _Loops:
    """What the loops of a module count."""

    def __init__(self, computations: list[tuple[str | None, list[str]]]) -> None:
        self._lines: dict[str, re.Match[str]] = {}
        self._roots: dict[str | None, re.Match[str]] = {}
        for name, lines in computations:
            for line in lines:
                found = _INSTRUCTION.match(line)
                if found is not None:
                    self._lines[found["name"]] = found
                    if line.lstrip().startswith(_ROOT):
                        self._roots[name] = found

    def trips(self, line: str) -> int:
        """How often the body of a loop runs, 1 where nothing says so."""
        known = _TRIPS.search(line)
        return int(known["count"]) if known is not None else self._counted(line) or 1

    def _counted(self, line: str) -> int | None:
        condition, loop = _CONDITION.search(line), _INSTRUCTION.match(line)
        compare = self._roots.get(condition["name"]) if condition is not None else None
        if compare is None or loop is None or "direction=LT" not in compare.string:
            return None
        counter, limit = self._operands(compare)
        started = self._operands(loop)[0]
        position = None if counter is None else _POSITION.search(counter.string)
        if position is None or started is None or started["opcode"] != "tuple":
            return None
        first = self._constant(self._operands(started)[int(position["position"])])
        last = self._constant(limit)
        return None if first is None or last is None else last - first

    def _operands(self, instruction: re.Match[str]) -> list[re.Match[str] | None]:
        return [self._lines.get(name) for name in _NAMES.findall(instruction["operands"])]

    def _constant(self, instruction: re.Match[str] | None) -> int | None:
        while instruction is not None and instruction["opcode"] == "copy":
            instruction = self._operands(instruction)[0]
        if instruction is None or instruction["opcode"] != "constant":
            return None
        return int(instruction["operands"])
