"""All persistent schedules of a short chain, for comparison with Rotor."""

import functools
from collections.abc import Iterator

from kiwi.literature.remat.graph import RematGraph
from kiwi.literature.remat.simulate import violations
from kiwi.solver.schedule import Schedule


@functools.cache
def persistent_sequences(first: int, last: int) -> tuple[tuple[tuple[str, int], ...], ...]:
    """Yields all persistent ways to run stages first ... last: f saves all, d saves nothing, b is
    backward.

    Either a stage saves all and runs once before the rest, or nothing is saved between the stage
    and some later stage, whose input is kept until that stage and all later ones are done.
    """
    if first == last:
        return ((("f", first), ("b", first)),)
    found = [(("f", first), *rest, ("b", first)) for rest in persistent_sequences(first + 1, last)]
    for kept in range(first + 1, last + 1):
        discarded = tuple(("d", stage) for stage in range(first, kept))
        found += [
            (*discarded, *rest, *again)
            for rest in persistent_sequences(kept, last)
            for again in persistent_sequences(first, kept - 1)
        ]
    return tuple(found)


def persistent_schedules(graph: RematGraph) -> Iterator[tuple[int, ...]]:
    """Yields the valid persistent schedules of a chain with one forward and one backward operator
    per stage."""
    stages = len(graph.operators) // 2
    for sequence in persistent_sequences(0, stages - 1):
        steps = tuple(k if kind in "fd" else 2 * stages - 1 - k for kind, k in sequence)
        if not violations(graph, Schedule(steps)):
            yield steps
