"""Options of a cluster: ways to run it forward and, later, backward, and what they need.

Between both, an option saves values of the cluster (the *phantom*, section 3.4.1.1). Memory of a
part is told step by step, without what is counted by whoever runs it: values from outside and
interface values. What of these is not needed any more, or not written yet, at a step gives
the correction terms (section 3.4.4.1).

Parts are also combined without a program: each runs once forward and once backward. From the
fastest options on, one part after the other exchanges its option for a slower one that holds less
between forward and backward, the cheapest bytes first: along the lower convex hull of each part,
and where prices are equal the earlier part first, which holds its values longest. This takes no
search. It gives large graphs a schedule in any time, and H-ILP a solution to start from.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass

from kiwi.literature.remat.chain import Steps, read_first
from kiwi.literature.remat.graph import RematGraph
from kiwi.literature.remat.hiremate.cluster import Cluster, StepPair
from kiwi.literature.remat.simulate import memory_bytes
from kiwi.literature.remat.stages import Part, Substep
from kiwi.solver.schedule import Schedule


@dataclass(frozen=True)
class Option:
    """One way to run a cluster; `saved_bytes` is the size of its phantom."""

    forward: Part
    backward: Part
    saved_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The larger peak of both parts."""
        return max(self.forward.peak_bytes, self.backward.peak_bytes)

    @property
    def seconds(self) -> float:
        """Seconds of both parts."""
        return self.forward.seconds + self.backward.seconds

    def is_as_good_as(self, other: "Option") -> bool:
        """No worse in time, memory and what it needs for the backward part."""
        return (
            self.seconds <= other.seconds
            and self.saved_bytes <= other.saved_bytes
            and self.forward.peak_bytes <= other.forward.peak_bytes
            and self.backward.peak_bytes <= other.backward.peak_bytes
            and self.backward.reads <= other.backward.reads
        )


def make_option(graph: RematGraph, interface: Set[int], pair: StepPair) -> Option:
    """The option that runs `pair` of one cluster (or part of it) in `graph`.

    `interface` are the values it writes for others.
    """
    forward, backward = pair
    made = {v for k in forward for v in graph.operators[k].outputs}
    written = made.union(*(graph.operators[k].outputs for k in backward))
    outputs, reads = made & interface, read_first(graph, backward)
    phantom = frozenset(reads & written - interface)
    inner, again = written - interface, outputs - reads
    return Option(
        _part(graph, forward, inner, phantom, after=True, born=outputs),
        _part(graph, backward, inner | again, phantom, after=False, born=interface - outputs),
        graph.bytes_of(phantom),
    )


def _part(
    graph: RematGraph,
    steps: Steps,
    inner: Set[int],
    phantom: frozenset[int],
    *,
    after: bool,
    born: Set[int],
) -> Part:
    """The phantom is left behind (`after`) or found at the beginning."""
    hidden = {v for k in steps for v in (*graph.operators[k].inputs, *graph.operators[k].outputs)}
    hidden -= inner
    begin, end = (frozenset(), phantom) if after else (phantom, frozenset())
    memory = memory_bytes(graph, Schedule(steps), begin, end, hidden)
    saved_bytes = graph.bytes_of(phantom)
    own_bytes = [held - saved_bytes for held in memory]
    reads = frozenset(read_first(graph, steps)) - phantom
    return Part(
        steps,
        graph.seconds_of(steps),
        reads,
        _substeps(graph, steps, own_bytes, reads, born),
        max(memory, default=0),
    )


def _substeps(
    graph: RematGraph, steps: Steps, own_bytes: Sequence[int], reads: frozenset[int], born: Set[int]
) -> tuple[Substep, ...]:
    """The substeps that no other one implies. Values of no bytes make no difference."""
    freed = frozenset(v for v in reads if graph.values[v].size_bytes)
    born = frozenset(v for v in born if graph.values[v].size_bytes)
    unborn: frozenset[int] = frozenset()
    largest: dict[tuple[frozenset[int], frozenset[int]], int] = {}
    first = {
        v: place
        for place, k in reversed(list(enumerate(steps)))
        for v in graph.operators[k].outputs
    }
    for place in reversed(range(len(steps))):
        operator = graph.operators[steps[place]]
        if not freed.isdisjoint(operator.inputs):
            freed -= frozenset(operator.inputs)
        held = own_bytes[place]
        largest[freed, unborn] = max(held, largest.get((freed, unborn), held))
        if not born.isdisjoint(operator.outputs):
            unborn |= {v for v in operator.outputs if v in born and first[v] == place}
    kept: list[Substep] = []
    for (freed, unborn), held in reversed(largest.items()):
        step = Substep(held, freed, unborn)
        if not any(other.implies(step) for other in kept):
            kept = [other for other in kept if not step.implies(other)] + [step]
    return tuple(kept)


def plain_options(cluster: Cluster) -> list[StepPair]:
    """To keep all that the backward part reads, and to recompute the whole forward part."""
    pairs = [(cluster.forward, cluster.backward)]
    if cluster.backward and all(cluster.graph.operators[k].recomputable for k in cluster.forward):
        pairs.append((cluster.forward, (*cluster.forward, *cluster.backward)))
    return pairs


def select(options: list[Option], most: int) -> list[Option]:
    """At most `most` options, none dominated: the fastest, then each time the one farthest away.

    In its peak as in the text (section 3.4.5), and also in what it saves, which is exchanged.
    """
    kept: list[Option] = []
    for option in sorted(options, key=lambda o: (o.seconds, o.saved_bytes, o.peak_bytes)):
        if not any(other.is_as_good_as(option) for other in kept):
            kept.append(option)
    if len(kept) <= most:
        return kept
    highest = max(1, max(option.peak_bytes for option in kept))
    most_saved = max(1, max(option.saved_bytes for option in kept))

    def apart(one: Option, other: Option) -> float:
        saved = abs(one.saved_bytes - other.saved_bytes) / most_saved
        return abs(one.peak_bytes - other.peak_bytes) / highest + saved

    chosen = [min(kept, key=lambda o: (o.seconds, -o.peak_bytes))]
    while len(chosen) < most:
        left = [o for o in kept if o not in chosen]
        distance = [min(apart(o, c) for c in chosen) for o in left]
        chosen.append(left[distance.index(max(distance))])
    return [option for option in kept if option in chosen]


Exchange = tuple[float, int, int]
"""Seconds per byte, the part, and its new option."""


def combinations(cluster: Cluster, options: Sequence[Sequence[Option]]) -> list[list[int]]:
    """The option of each part of `cluster`: the fastest, and those after each exchange."""
    parts = [_exchanges(cluster, part, each) for part, each in enumerate(options)]
    found = [[fastest for fastest, _ in parts]]
    exchanges = (exchange for _, each in parts for exchange in each)
    for _, part, option in sorted(exchanges, key=lambda exchange: exchange[:2]):
        found.append([*found[-1][:part], option, *found[-1][part + 1 :]])
    return found


def combined(options: Sequence[Sequence[Option]], chosen: Sequence[int]) -> StepPair:
    """Forward and backward operators of a combination."""
    parts = [each[o] for each, o in zip(options, chosen, strict=True)]
    forward = (k for option in parts for k in option.forward.steps)
    backward = (k for option in reversed(parts) for k in option.backward.steps)
    return tuple(forward), tuple(backward)


def _exchanges(
    cluster: Cluster, part: int, options: Sequence[Option]
) -> tuple[int, list[Exchange]]:
    """The fastest option, and from it on each time the one whose bytes cost least."""
    held = [_held_bytes(cluster, option) for option in options]
    fastest = min(range(len(options)), key=lambda o: (options[o].seconds, options[o].saved_bytes))
    found, now, price = [], fastest, 0.0
    while True:
        smaller = [o for o in range(len(options)) if held[o] < held[now]]
        if not smaller:
            return fastest, found
        slope = {
            o: (options[o].seconds - options[now].seconds) / (held[now] - held[o]) for o in smaller
        }
        now = min(smaller, key=lambda o: (slope[o], held[o]))
        price = max(price, slope[now])
        found.append((price, part, now))


def _held_bytes(cluster: Cluster, option: Option) -> int:
    """The phantom, and what other parts hold for the backward part."""
    graph = cluster.graph
    kept = [v for v in option.backward.reads if 0 <= graph.producer[v] < cluster.forward_count]
    return option.saved_bytes + graph.bytes_of(kept)
