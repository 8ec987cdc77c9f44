"""Options of a cluster: ways to run it forward and, later, backward, and what they need.

Between forward and backward, an option saves values of the cluster (the *phantom*, section
3.4.1.1). The memory of a part is given step by step. It leaves out the values that whoever runs the
part counts: values from outside and interface values. At each step, some of these values are no
longer needed or not yet written. They give the correction terms (section 3.4.4.1).

Parts are also combined without an integer program. Each part then runs once forward and once
backward. The parts start from their fastest options. One part after the other exchanges its option
for a slower one that holds less between forward and backward, the cheapest bytes first. The
exchanges of a part follow its lower convex hull. At equal prices the earlier part comes first,
because it holds its values longest. This takes no search. It gives large graphs a schedule in any
time, and H-ILP a solution to start from.
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
    """One way to run a cluster. `saved_bytes` is the size of its phantom."""

    forward: Part
    backward: Part
    saved_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The larger peak of both parts."""
        return max(self.forward.peak_bytes, self.backward.peak_bytes)

    @property
    def seconds(self) -> float:
        """The time of both parts."""
        return self.forward.seconds + self.backward.seconds

    def is_as_good_as(self, other: "Option") -> bool:
        """Returns whether the option is no worse in time, in memory and in its needs for the
        backward part."""
        return (
            self.seconds <= other.seconds
            and self.saved_bytes <= other.saved_bytes
            and self.forward.peak_bytes <= other.forward.peak_bytes
            and self.backward.peak_bytes <= other.backward.peak_bytes
            and self.backward.reads <= other.backward.reads
        )


def make_option(graph: RematGraph, interface: Set[int], pair: StepPair) -> Option:
    """Returns the option that runs `pair` of one cluster (or of part of it) in `graph`.

    `interface` are the values that the cluster writes for others.
    """
    forward, backward = pair
    made = {value for k in forward for value in graph.operators[k].outputs}
    written = made.union(*(graph.operators[k].outputs for k in backward))
    outputs, reads = made & interface, read_first(graph, backward)
    phantom = frozenset(reads & written - interface)
    inner, unread_outputs = written - interface, outputs - reads
    return Option(
        _part(graph, forward, inner, phantom, after=True, born=outputs),
        _part(
            graph, backward, inner | unread_outputs, phantom, after=False, born=interface - outputs
        ),
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
    """Returns the forward part (`after`) or the backward part of an option.

    The forward part leaves the phantom in memory, and the backward part finds it there. `inner` are
    the values that count for the part. `born` are the values that it writes for others.
    """
    hidden = {
        value for k in steps for value in (*graph.operators[k].inputs, *graph.operators[k].outputs)
    }
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
    """Returns the substeps that no other substep implies. Values of zero bytes are left out."""
    freed = frozenset(value for value in reads if graph.values[value].size_bytes)
    born = frozenset(value for value in born if graph.values[value].size_bytes)
    unborn: frozenset[int] = frozenset()
    largest: dict[tuple[frozenset[int], frozenset[int]], int] = {}
    first = {
        value: place
        for place, k in reversed(list(enumerate(steps)))
        for value in graph.operators[k].outputs
    }
    for place in reversed(range(len(steps))):
        operator = graph.operators[steps[place]]
        if not freed.isdisjoint(operator.inputs):
            freed -= frozenset(operator.inputs)
        held = own_bytes[place]
        largest[freed, unborn] = max(held, largest.get((freed, unborn), held))
        if not born.isdisjoint(operator.outputs):
            unborn |= {
                value for value in operator.outputs if value in born and first[value] == place
            }
    kept: list[Substep] = []
    for (freed, unborn), held in reversed(largest.items()):
        step = Substep(held, freed, unborn)
        if not any(other.implies(step) for other in kept):
            kept = [other for other in kept if not step.implies(other)] + [step]
    return tuple(kept)


def plain_options(cluster: Cluster) -> list[StepPair]:
    """Returns two options: keep all that the backward part reads, or recompute the whole forward
    part."""
    pairs = [(cluster.forward, cluster.backward)]
    if cluster.backward and all(cluster.graph.operators[k].recomputable for k in cluster.forward):
        pairs.append((cluster.forward, (*cluster.forward, *cluster.backward)))
    return pairs


def select(options: list[Option], most: int) -> list[Option]:
    """Returns at most `most` options, none of which is dominated.

    The fastest is taken first, then each time the option farthest from all taken ones. The distance
    is the difference of peaks, as in the text (section 3.4.5), and of saved bytes, which are
    exchanged.
    """
    kept: list[Option] = []
    for option in sorted(
        options,
        key=lambda candidate: (candidate.seconds, candidate.saved_bytes, candidate.peak_bytes),
    ):
        if not any(other.is_as_good_as(option) for other in kept):
            kept.append(option)
    if len(kept) <= most:
        return kept
    highest = max(1, max(option.peak_bytes for option in kept))
    most_saved = max(1, max(option.saved_bytes for option in kept))

    def apart(one: Option, other: Option) -> float:
        saved = abs(one.saved_bytes - other.saved_bytes) / most_saved
        return abs(one.peak_bytes - other.peak_bytes) / highest + saved

    chosen = [min(kept, key=lambda candidate: (candidate.seconds, -candidate.peak_bytes))]
    while len(chosen) < most:
        left = [candidate for candidate in kept if candidate not in chosen]
        distance = [min(apart(candidate, taken) for taken in chosen) for candidate in left]
        chosen.append(left[distance.index(max(distance))])
    return [option for option in kept if option in chosen]


Exchange = tuple[float, int, int]
"""Seconds per byte, the part, and the number of its new option."""


def combinations(cluster: Cluster, options: Sequence[Sequence[Option]]) -> list[list[int]]:
    """Returns combinations of options: the fastest of all parts, then one after each exchange."""
    parts = [_exchanges(cluster, part, alternatives) for part, alternatives in enumerate(options)]
    choices = [[fastest for fastest, _ in parts]]
    exchanges = (exchange for _, part_exchanges in parts for exchange in part_exchanges)
    for _, part, option in sorted(exchanges, key=lambda exchange: exchange[:2]):
        choices.append([*choices[-1][:part], option, *choices[-1][part + 1 :]])
    return choices


def combined(options: Sequence[Sequence[Option]], chosen: Sequence[int]) -> StepPair:
    """Returns the forward and backward operators of a combination."""
    parts = [alternatives[number] for alternatives, number in zip(options, chosen, strict=True)]
    forward = (k for option in parts for k in option.forward.steps)
    backward = (k for option in reversed(parts) for k in option.backward.steps)
    return tuple(forward), tuple(backward)


def _exchanges(
    cluster: Cluster, part: int, options: Sequence[Option]
) -> tuple[int, list[Exchange]]:
    """Returns the number of the fastest option, and the exchanges from there on.

    Each exchange takes the option whose saved bytes cost least.
    """
    held = [_held_bytes(cluster, option) for option in options]
    fastest = min(
        range(len(options)),
        key=lambda number: (options[number].seconds, options[number].saved_bytes),
    )
    exchanges, now, price = [], fastest, 0.0
    while True:
        smaller = [number for number in range(len(options)) if held[number] < held[now]]
        if not smaller:
            return fastest, exchanges
        slope = {
            number: (options[number].seconds - options[now].seconds) / (held[now] - held[number])
            for number in smaller
        }
        now = min(smaller, key=lambda number: (slope[number], held[number]))
        price = max(price, slope[now])
        exchanges.append((price, part, now))


def _held_bytes(cluster: Cluster, option: Option) -> int:
    """Returns the bytes of the phantom and of others' values that are held for the backward
    part."""
    graph = cluster.graph
    kept = [
        value
        for value in option.backward.reads
        if 0 <= graph.producer[value] < cluster.forward_count
    ]
    return option.saved_bytes + graph.bytes_of(kept)
