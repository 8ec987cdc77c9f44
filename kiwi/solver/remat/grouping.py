"""Node grouping (FastSA, appendix C.1): operators that are computed as one.

An operator whose inputs are no larger than its outputs is joined to each of its readers, so
that its result is never kept: each reader recomputes it. Groups make the annealer recompute
chains in one move.

Differs from the text in two points, without which all of a graph may end in one group: sizes
are compared for the operator alone, not for the group that it has become, and an operator
without inputs stays alone. (The text has parameters among the inputs, which prevents both.)
"""

from dataclasses import dataclass, replace

from kiwi.solver.remat.graph import RematGraph
from kiwi.solver.remat.simulate import memory_bytes
from kiwi.solver.schedule import Schedule

LONGEST_GROUP = 256
"""Most operators in one group: on long chains all groups together would grow quadratically."""


@dataclass(frozen=True)
class Grouping:
    """A graph of groups: group `g` computes the original operators `members[g]` in turn.

    The values are those of the original. An operator may be a member of several groups.
    """

    graph: RematGraph
    members: tuple[tuple[int, ...], ...]

    def expand(self, schedule: Schedule) -> Schedule:
        """The schedule of the original operators."""
        return Schedule(tuple(each for step in schedule.steps for each in self.members[step]))


def group_operators(graph: RematGraph) -> Grouping:
    """Algorithm 1 of FastSA on the given order."""
    members: dict[int, tuple[int, ...]] = {k: (k,) for k in range(len(graph.operators))}
    inputs = {k: graph.operators[k].inputs for k in members}
    readers: list[dict[int, None]] = [dict.fromkeys(each) for each in graph.readers]
    for index in graph.order:
        joined = _readers_to_join(graph, index, readers)
        if any(len(members[index]) + len(members[each]) > LONGEST_GROUP for each in joined):
            continue
        outputs = graph.operators[index].outputs
        for reader in joined:
            members[reader] = tuple(dict.fromkeys(members[index] + members[reader]))
            kept = (value for value in inputs[reader] if value not in outputs)
            inputs[reader] = tuple(dict.fromkeys((*inputs[index], *kept)))
            for value in inputs[index]:
                readers[value][reader] = None
        if joined:
            for value in inputs[index]:
                readers[value].pop(index, None)
            del members[index], inputs[index]
    return _build(graph, members, inputs)


def _readers_to_join(
    graph: RematGraph, index: int, readers: list[dict[int, None]]
) -> tuple[int, ...]:
    """Readers that take over operator `index`; none if its result must stay a value."""
    outputs = graph.operators[index].outputs
    own = graph.operators[index].inputs
    if not own or not outputs or graph.results.intersection(outputs):
        return ()
    joined = readers[outputs[0]]
    is_small = graph.bytes_of(own) <= graph.bytes_of(outputs)
    together = all(readers[value].keys() == joined.keys() for value in outputs)
    return tuple(joined) if is_small and together and graph.operators[index].recomputable else ()


def _build(
    graph: RematGraph, members: dict[int, tuple[int, ...]], inputs: dict[int, tuple[int, ...]]
) -> Grouping:
    number = {index: place for place, index in enumerate(members)}
    operators = tuple(
        replace(
            graph.operators[index],
            compute_seconds=graph.seconds_of(group),
            inputs=inputs[index],
            temporary_bytes=_temporary_bytes(graph, index, group),
            recomputable=all(graph.operators[each].recomputable for each in group),
        )
        for index, group in members.items()
    )
    order = tuple(number[index] for index in graph.order if index in number)
    # Values within a group have no writer any more; they must not count as resident.
    outside = {value for each in operators for value in each.inputs + each.outputs}
    values = tuple(
        value if place in outside else replace(value, size_bytes=0)
        for place, value in enumerate(graph.values)
    )
    grouped = RematGraph(operators, values, order, graph.results)
    return Grouping(grouped, tuple(members.values()))


def _temporary_bytes(graph: RematGraph, index: int, members: tuple[int, ...]) -> int:
    """Memory within a group beyond its inputs and outputs, which count as live throughout."""
    own = frozenset(graph.operators[index].outputs)
    return max(memory_bytes(graph, Schedule(members), after=frozenset(), hidden=own))
