"""Linearisation of a training graph into a chain of groups (MAP, section 5.2, algorithm 2).

Forward operators are taken in the given order and appended to the current group. A group ends
where no value of it or of earlier groups is still to be read by later forward operators,
except those of the operator just appended. Values of *common* operators (non-differentiable:
without a backward operator, and reading only common values, e.g. an attention mask) are read
all over the network; they are left out of that account.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kiwi.errors import InvalidProblemError
from kiwi.solver.remat.graph import RematGraph


@dataclass(frozen=True)
class Linearised:
    """Operators by role and stage, each list in the given order; the last stage has the loss.

    `common` ones belong to no stage and come first.
    """

    forward: tuple[tuple[int, ...], ...]
    backward: tuple[tuple[int, ...], ...]
    common: tuple[int, ...]


def linearise(graph: RematGraph) -> Linearised:
    """The stages of `graph`; raises as `backward_operators` does."""
    backward = backward_operators(graph)
    common = _common_operators(graph, backward)
    forward = [k for k in graph.order if k not in backward and k not in common]
    groups = _groups(graph, forward)
    stage_of = {operator: stage for stage, group in enumerate(groups) for operator in group}
    behind = backward_owners(graph, backward, stage_of, len(groups) - 1)
    return Linearised(
        tuple(map(tuple, groups)),
        tuple(
            tuple(k for k in graph.order if behind.get(k) == stage) for stage in range(len(groups))
        ),
        tuple(k for k in graph.order if k in common),
    )


def backward_operators(graph: RematGraph) -> set[int]:
    """Backward operators and all that depends on them (gradients, updates); raises
    `kiwi.errors.InvalidProblemError` if no backward operator is known."""
    if not graph.backward_of:
        raise InvalidProblemError(
            "the graph cannot be divided into stages: no backward operator is known",
            cause="`backward_of` is empty",
            suggestion="a planner for general graphs, such as remat",
        )
    found = {backward for _, backward in graph.backward_of}
    for k in graph.order:
        if found.intersection(graph.predecessors(k)):
            found.add(k)
    return found


def _common_operators(graph: RematGraph, backward: set[int]) -> set[int]:
    """Lemma 5.4, started from operators that read nothing but inputs of the graph."""
    paired = {forward for forward, _ in graph.backward_of}
    common: set[int] = set()
    for k in graph.order:
        if k not in paired and k not in backward and common.issuperset(graph.predecessors(k)):
            common.add(k)
    return common


def _groups(graph: RematGraph, forward: list[int]) -> list[list[int]]:
    """Algorithm 2; `read_until` is the place of the last forward reader of all but the last one."""
    place = {k: at for at, k in enumerate(forward)}
    groups: list[list[int]] = [[]]
    read_until = -1
    for at, k in enumerate(forward):
        groups[-1].append(k)
        readers = (r for v in graph.operators[k].outputs for r in graph.readers[v])
        last = max((place[r] for r in readers if r in place), default=-1)
        if read_until <= at < last:
            groups.append([])
        read_until = max(read_until, last)
    return [group for group in groups if group]


def backward_owners(
    graph: RematGraph, backward: set[int], owners: Mapping[int, int], last: int
) -> dict[int, int]:
    """The number of each backward operator: that of its forward operator, `owners` of which, else
    `last`; but never later than that of an operator it depends on, since backward parts run in
    reverse.
    """
    partner = {after: before for before, after in graph.backward_of}
    behind: dict[int, int] = {}
    for k in graph.order:
        if k in backward:
            earlier = [behind[p] for p in graph.predecessors(k) if p in behind]
            behind[k] = min([owners.get(partner.get(k, -1), last), *earlier])
    return behind
