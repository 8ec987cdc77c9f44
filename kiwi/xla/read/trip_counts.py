"""How often the instructions of an HLO module run: once for each iteration of the loops around.

XLA:CPU and XLA:GPU write the trip count that they found into a `while` (`known_trip_count`).
XLA:TPU writes none: there it is the difference of the constants that a loop's counter starts from
and is compared with, as `jax.lax.scan` counts, by what its body adds. A loop with neither, and each
branch of a conditional, counts as running once.
"""

import re
from collections.abc import Iterator, Mapping

from kiwi.xla.read.hlo_text import Computation, Instruction, Module

_TRIPS = re.compile(r'"known_trip_count":\{"n":"(?P<count>\d+)"\}')
_POSITION = re.compile(r"\bindex=(?P<position>\d+)")
_ROLES = ("body", "condition", "calls", "to_apply")


def runs(module: Module) -> Mapping[str, int]:
    """By computation, how often it runs in a step."""
    called = {
        name: [pair for i in found.instructions for pair in _called(module, found, i)]
        for name, found in module.computations.items()
    }
    inside = {callee for pairs in called.values() for callee, _ in pairs}
    times: dict[str, int] = {name: 1 for name in called if name not in inside}
    # A computation stands behind those that it calls.
    for name in reversed(list(module.computations)):
        for callee, trips in called[name]:
            times[callee] = times.get(callee, 0) + trips * times.get(name, 1)
    return {name: times.get(name, 1) for name in called}


def trip_count(module: Module, computation: Computation, loop: Instruction) -> int:
    """How often the body of a `while` runs, 1 where nothing says so."""
    known = _TRIPS.search(loop.attributes)
    return int(known["count"]) if known is not None else _counted(module, computation, loop) or 1


def _called(
    module: Module, computation: Computation, instruction: Instruction
) -> Iterator[tuple[str, int]]:
    """The computations that an instruction runs, and how often each."""
    for role in _ROLES:
        name = instruction.computation(role)
        if name in module.computations:
            yield name, trip_count(module, computation, instruction) if role == "body" else 1
    for name in instruction.branches:
        if name in module.computations:
            yield name, 1


def _counted(module: Module, computation: Computation, loop: Instruction) -> int | None:
    condition = module.computations.get(loop.computation("condition"))
    compare = None if condition is None else condition.root
    if condition is None or compare is None or "direction=LT" not in compare.attributes:
        return None
    counter, limit = (condition.by_name.get(name) for name in compare.operands)
    started = computation.by_name.get(loop.operands[0])
    position = None if counter is None else _POSITION.search(counter.attributes)
    if position is None or started is None or started.opcode != "tuple":
        return None
    place = int(position["position"])
    first = _constant(computation, started.operands[place])
    last = _constant(condition, "" if limit is None else limit.name)
    if first is None or last is None:
        return None
    return -(-(last - first) // _increment(module, loop, place))


def _increment(module: Module, loop: Instruction, place: int) -> int:
    """What a loop's body adds to its counter; one where it does not say: XLA unrolls loops."""
    body = module.computations.get(loop.computation("body"))
    if body is None or not body.instructions or body.root.opcode != "tuple":
        return 1
    added = body.by_name.get(body.root.operands[place])
    if added is None or added.opcode != "add":
        return 1
    steps = (_constant(body, name) for name in added.operands)
    return next((step for step in steps if step is not None and step > 0), 1)


def _constant(computation: Computation, name: str) -> int | None:
    found = computation.by_name.get(name)
    while found is not None and found.opcode == "copy":
        found = computation.by_name.get(found.operands[0])
    return None if found is None or found.opcode != "constant" else int(found.operands[0])
