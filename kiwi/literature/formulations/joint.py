"""The paper's reduced problem without Eq. 9, as Kiwi's `Problem`: pairs instead of products.

An operator's option is a pair (strategy, residency). A forward operator has these residencies:

- keep(end): the result is held from its computation to `end`. `end` is the last use, or the time at
  which a consumer is recomputed (Eq. 10, one option for each value of `h`).
- repeat(at, end): the result is held to its last forward use, and again from `at` to `end`. `at` is
  the first use behind the forward pass (`H`, Eq. 5). In a chain, `at` may also be the time at which
  a consumer is recomputed.

An edge costs resharding once, or twice if the reader is recomputed. Its cost is infinite if a
recomputed reader would not find the value. With `chains=False` no recomputed operator reads a
recomputed operator (Eq. 9): this is the paper's reduced problem in the same form.
"""

from kiwi.literature.formulations.residencies import Residency, ResidencyProblem, residency_problem
from kiwi.literature.formulations.sharded_graph import ShardedGraph


def build_joint(graph: ShardedGraph, limit_bytes: int, *, chains: bool = True) -> ResidencyProblem:
    """Returns the problem of choosing a strategy and a residency for each operator.

    `limit_bytes` bounds the memory at every time. `chains=False` keeps Eq. 9.
    """

    def finds(producer: Residency, reader: Residency) -> bool:
        begin, end = producer.held[-1]
        return all(begin <= time < end for time in reader.again) and (
            chains or not (reader.again and producer.again)
        )

    times = _repeat_times(graph, chains)
    residencies = [_residencies(graph, i, times) for i in range(len(graph.operators))]
    return residency_problem(graph, residencies, limit_bytes, finds)


def _repeat_times(graph: ShardedGraph, chains: bool) -> list[tuple[int, ...]]:
    """Returns, for each operator, the times before which it may be recomputed, in ascending order.

    These are its first use behind the forward pass (`H`) and, with chains, the earlier times at
    which a consumer may be recomputed. The tuple is empty for an operator that may not be
    recomputed.
    """
    late_uses = [use if graph.may_repeat(i) else None for i, use in enumerate(graph.first_late_use)]
    if not chains:
        return [() if use is None else (use,) for use in late_uses]
    repeat_times: list[tuple[int, ...]] = [()] * len(late_uses)
    for i in reversed(range(len(late_uses))):
        if graph.may_repeat(i):
            latest, times = late_uses[i], {t for j in graph.readers[i] for t in repeat_times[j]}
            if latest is not None:
                times = {t for t in times if t < latest} | {latest}
            repeat_times[i] = tuple(sorted(times))
    return repeat_times


def _residencies(
    graph: ShardedGraph, i: int, times: list[tuple[int, ...]]
) -> tuple[Residency, ...]:
    end, last = len(graph.operators), graph.last_use[i]
    if graph.operators[i].is_parameter:
        return (Residency(((0, end),)),)
    if i in graph.results:
        return (Residency(((i, end),), (), (i,)),)
    consumers = sorted({time for j in graph.readers[i] for time in times[j]})
    ends = [last, *(time for time in consumers if time > last)]
    residencies = [Residency(((i, end + 1),), (), (i,)) for end in ends]
    forward = (i, graph.last_forward_use[i] + 1)
    for at in times[i]:
        base = at if graph.first_late_use[i] is None else last
        ends = [base, *(time for time in consumers if time > base)]
        residencies += [Residency((forward, (at, end + 1)), (at,), (i, at)) for end in ends]
    return tuple(residencies)
