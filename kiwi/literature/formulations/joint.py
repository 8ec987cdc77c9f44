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

from kiwi.literature.formulations.residencies import Residency, ResidencyProblem, residency_problem
from kiwi.literature.formulations.sharded_graph import ShardedGraph


def build_joint(graph: ShardedGraph, limit_bytes: int, *, chains: bool = True) -> ResidencyProblem:
    """The problem; `chains=False` keeps Eq. 9."""

    def finds(producer: Residency, reader: Residency) -> bool:
        begin, end = producer.held[-1]
        return all(begin <= time < end for time in reader.again) and (
            chains or not (reader.again and producer.again)
        )

    times = _repeat_times(graph, chains)
    found = [_residencies(graph, i, times) for i in range(len(graph.operators))]
    return residency_problem(graph, found, limit_bytes, finds)


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
    end, last = len(graph.operators), graph.last_use[i]
    if graph.operators[i].is_parameter:
        return (Residency(((0, end),)),)
    if i in graph.results:
        return (Residency(((i, end),), (), (i,)),)
    consumers = sorted({t for j in graph.readers[i] for t in times[j]})
    ends = [last, *(t for t in consumers if t > last)]
    found = [Residency(((i, end + 1),), (), (i,)) for end in ends]
    forward = (i, graph.last_forward_use[i] + 1)
    for at in times[i]:
        base = at if graph.first_late_use[i] is None else last
        ends = [base, *(t for t in consumers if t > base)]
        found += [Residency((forward, (at, end + 1)), (at,), (i, at)) for end in ends]
    return tuple(found)
