"""Communication of a sharded graph, as MAP adds it to chains (Liu et al., 2023, table 2).

There every stage has, besides the time and memory of its computation, the time and the memory of
what it communicates, forward and backward. Here these belong to the operators of the stage: a
collective runs as often as its operator, and its buffers are held while that runs. Equation 5 of
MAP leaves communication out where a stage is computed again; here it is paid again, as it is when
the program runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kiwi.solver.remat.graph import Operator, RematGraph


@dataclass(frozen=True)
class Communication:
    """What one run of an operator communicates: its time, and the buffers held meanwhile."""

    seconds: float
    buffer_bytes: int


def with_communication(graph: RematGraph, added: Mapping[int, Communication]) -> RematGraph:
    """`graph`, in which operator k also communicates `added[k]`, if that is given.

    Raises `kiwi.errors.InvalidProblemError` for negative amounts.
    """
    operators = tuple(
        _communicating(operator, added[k]) if k in added else operator
        for k, operator in enumerate(graph.operators)
    )
    return replace(graph, operators=operators)


def _communicating(operator: Operator, added: Communication) -> Operator:
    return replace(
        operator,
        compute_seconds=operator.compute_seconds + added.seconds,
        temporary_bytes=operator.temporary_bytes + added.buffer_bytes,
    )
