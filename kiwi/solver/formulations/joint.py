"""The paper's reduced problem without Eq. 9, as Kiwi's `Problem`: pairs instead of products.

The option of an operator is (strategy, residency). A residency of a forward operator is

- keep(end): held from its computation to `end`: its last use, or the time at which a consumer is
  recomputed (Eq. 10, one option for each value of `h`).
- repeat(at, end): held to its last forward use, and from `at` to `end` again. `at` is its first
  use behind the forward pass (`H`, Eq. 5) or, in a chain, that of a recomputed consumer.

An edge costs resharding once, or twice where the reader is recomputed, and is infinite where the
recomputed reader would not find the value. With `chains=False` nothing that is recomputed reads
what is recomputed (Eq. 9): the paper's reduced problem in the same form.
"""

from dataclasses import dataclass

import numpy as np

from kiwi.solver.formulations.answer import Solution, repeated_before
from kiwi.solver.formulations.sharded_graph import Read, ShardedGraph, Tie
from kiwi.solver.problem import Edge, Interval, Node, Problem


@dataclass(frozen=True, order=True)
class Residency:
    """`repeat_at` is None for keep; `end` is inclusive."""

    repeat_at: int | None
    end: int

    def holds_at(self, time: int) -> bool:
        """Whether a consumer that is recomputed at `time` finds the value."""
        return (-1 if self.repeat_at is None else self.repeat_at) <= time <= self.end


@dataclass(frozen=True, eq=False)
class JointProblem:
    """A `Problem` with what its options mean: strategies x residencies, strategy-major."""

    graph: ShardedGraph
    residencies: tuple[tuple[Residency, ...], ...]
    problem: Problem

    def read_answer(self, solution: tuple[int, ...]) -> Solution:
        """Schedule and strategies of a solution."""
        pairs = [divmod(o, len(r)) for o, r in zip(solution, self.residencies, strict=True)]
        chosen = [r[k] for (_, k), r in zip(pairs, self.residencies, strict=True)]
        at = [(i, r.repeat_at) for i, r in enumerate(chosen) if r.repeat_at is not None]
        return repeated_before(self.graph, at), tuple(s for s, _ in pairs)


def build_joint(graph: ShardedGraph, limit_bytes: int, *, chains: bool = True) -> JointProblem:
    """The problem; `chains=False` keeps Eq. 9."""
    times = _repeat_times(graph, chains)
    found = tuple(_residencies(graph, i, times) for i in range(len(graph.operators)))
    nodes = tuple(_node(graph, i, found[i]) for i in range(len(found)))
    edges = [_read_edge(read, found, chains) for read in graph.reads]
    edges += [tied_edge(tie, len(found[tie.first]), len(found[tie.second])) for tie in graph.ties]
    return JointProblem(graph, found, Problem(nodes, tuple(edges), limit_bytes, len(nodes)))


def _repeat_times(graph: ShardedGraph, chains: bool) -> list[tuple[int, ...]]:
    """When each operator may be recomputed: at its own H, and those of consumers before it."""
    own = [h if graph.may_repeat(i) else None for i, h in enumerate(graph.first_late_use)]
    if not chains:
        return [() if h is None else (h,) for h in own]
    found: list[tuple[int, ...]] = [()] * len(own)
    for i in reversed(range(len(own))):
        if graph.may_repeat(i):
            latest, times = own[i], {t for j in graph.readers[i] for t in found[j]}
            if latest is not None:
                times = {t for t in times if t < latest} | {latest}
            found[i] = tuple(sorted(times))
    return found


def _residencies(
    graph: ShardedGraph, i: int, times: list[tuple[int, ...]]
) -> tuple[Residency, ...]:
    last = graph.last_use[i]
    if graph.operators[i].is_parameter or i in graph.results:
        return (Residency(None, len(graph.operators) - 1),)
    consumers = sorted({t for j in graph.readers[i] for t in times[j]})
    options = [Residency(None, end) for end in {last, *(t for t in consumers if t > last)}]
    is_late = graph.first_late_use[i] is not None
    for at in times[i]:
        base = last if is_late else at
        options += [Residency(at, end) for end in {base, *(t for t in consumers if t >= base)}]
    return tuple(sorted(options, key=lambda r: (r.repeat_at is not None, r.repeat_at or 0, r.end)))


def _node(graph: ShardedGraph, i: int, residencies: tuple[Residency, ...]) -> Node:
    o = graph.operators[i]
    runs = np.array([1.0 + (r.repeat_at is not None) for r in residencies])
    once = np.array(o.once_seconds or (0.0,) * o.count)
    costs = np.outer(o.seconds, runs) + once[:, None]
    usage = tuple(
        _usage(graph, i, r, result, workspace)
        for result, workspace in zip(o.result_bytes, o.workspace_bytes, strict=True)
        for r in residencies
    )
    return Node(o.name, costs.ravel(), usage)


def _usage(
    graph: ShardedGraph, i: int, r: Residency, result: int, workspace: int
) -> tuple[Interval, ...]:
    if graph.operators[i].is_parameter:
        return (Interval(0, len(graph.operators), result),)
    starts, lives = [i], [(i, r.end)]
    if r.repeat_at is not None:
        starts.append(r.repeat_at)
        lives = [(i, graph.last_forward_use[i]), (r.repeat_at, r.end)]
    held = tuple(Interval(a, b + 1, result) for a, b in lives)
    return held + tuple(Interval(t, t + 1, workspace) for t in starts if workspace)


def _read_edge(read: Read, found: tuple[tuple[Residency, ...], ...], chains: bool) -> Edge:
    """Resharding for each run of the reader; infinite where a run finds nothing to read."""
    tails, heads = found[read.producer], found[read.reader]
    runs = np.array([1.0 + (h.repeat_at is not None) for h in heads])
    there = np.array(
        [
            [
                h.repeat_at is None or (t.holds_at(h.repeat_at) and (chains or t.repeat_at is None))
                for h in heads
            ]
            for t in tails
        ]
    )
    costs = np.kron(read.seconds, np.tile(runs, (len(tails), 1)))
    costs += np.tile(np.where(there, 0.0, np.inf), read.seconds.shape)
    return Edge(read.producer, read.reader, costs)


def tied_edge(tie: Tie, first_count: int, second_count: int) -> Edge:
    """The costs of a tie, for so many residencies of each strategy."""
    costs = np.kron(tie.seconds, np.ones((first_count, second_count)))
    return Edge(tie.first, tie.second, costs)
