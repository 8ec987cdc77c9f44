"""Blocks as OffMate sees them: three ways to run each, and the weights that they use together."""

from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from kiwi.literature.remat.chain import Borders, Steps, ancestors, read_first
from kiwi.literature.remat.offload.host import Host, Update


@dataclass(frozen=True)
class BlockOption:
    """One way to run a block.

    - `forward`, `backward`: its operators; their seconds leave out updates.
    - `stored_bytes`: what stays on the device in between, the block's output included.
    - `sent`: values that go to the host in between, `sent_bytes` together.
    - `forward_peak_bytes`, `backward_peak_bytes`: as of `kiwi.literature.remat.chain.Option`.
    """

    forward: Steps
    backward: Steps
    forward_seconds: float
    backward_seconds: float
    stored_bytes: int
    sent: frozenset[int]
    sent_bytes: int
    forward_peak_bytes: int
    backward_peak_bytes: int


def block_options(borders: Borders, host: Host, index: int) -> tuple[BlockOption, ...]:
    """The options of each block in Zhao's thesis (section 4.4): keep everything that backward
    reads; keep nothing and run forward again; or send values to the host that take longer to
    compute than to copy, and compute the rest again."""
    graph, forward = borders.graph, borders.groups.forward[index]
    made = {v for k in forward for v in graph.operators[k].outputs} - borders.shared
    read = (read_first(graph, borders.groups.backward[index]) & made) - borders.handed_on[index + 1]
    again = ancestors(graph, forward, read)
    found = [_option(borders, host, index, (), frozenset())]
    if all(graph.operators[k].recomputable for k in again):
        found.append(_option(borders, host, index, again, frozenset()))
    found.append(_option(borders, host, index, *_cheap(borders, host, index, read)))
    return tuple(dict.fromkeys(found))


def _cheap(
    borders: Borders, host: Host, index: int, read: Set[int]
) -> tuple[Steps, frozenset[int]]:
    """Operators that are computed again rather than copied, and the values that are copied."""
    graph, needed = borders.graph, set(read)
    again: list[int] = []
    sent: set[int] = set()
    for k in reversed(borders.groups.forward[index]):
        operator = graph.operators[k]
        wanted = needed.intersection(operator.outputs)
        copying = host.both_ways_seconds(graph.bytes_of(operator.outputs))
        if wanted and operator.recomputable and operator.compute_seconds < copying:
            again.append(k)
            needed.update(operator.inputs)
        else:
            sent |= wanted - host.stays
    return tuple(reversed(again)), frozenset(sent)


def _option(
    borders: Borders, host: Host, index: int, again: Steps, sent: frozenset[int]
) -> BlockOption:
    graph, groups = borders.graph, borders.groups
    updates = {each.operator for each in host.updates}
    option = borders.option(index, groups.forward[index], again + groups.backward[index])
    sent_bytes = graph.bytes_of(sent)
    return BlockOption(
        option.forward,
        option.backward,
        graph.seconds_of(option.forward),
        graph.seconds_of(k for k in option.backward if k not in updates),
        option.saved_bytes - sent_bytes,
        sent,
        sent_bytes,
        option.forward_peak_bytes,
        option.backward_peak_bytes,
    )


@dataclass(frozen=True)
class Group:
    """Weights that the same windows of a step use, with what updates them.

    - `uses`: windows in which operators other than updates read them, in order.
    - `updated`: the window of the updates.
    - `weights`, `states`: inputs of the graph: those that are read elsewhere, and those that only
      updates read. `gradient_bytes`: of what the updates read besides.
    """

    uses: tuple[int, ...]
    updated: int
    updates: tuple[Update, ...]
    weights: tuple[int, ...] = field(default=())
    states: tuple[int, ...] = field(default=())
    gradient_bytes: int = 0

    @property
    def gap(self) -> range:
        """The longest run of windows between two uses."""
        gaps = [range(a + 1, b) for a, b in zip(self.uses, self.uses[1:], strict=False)]
        return max(gaps, key=len, default=range(0))


def groups_of(borders: Borders, host: Host) -> tuple[Group, ...]:
    """The weights of all updates; windows as of `forward_window` and `backward_window`."""
    graph, count = borders.graph, len(borders.stages)
    window = {k: forward_window(s) for s, group in enumerate(borders.groups.forward) for k in group}
    for s, group in enumerate(borders.groups.backward):
        window |= dict.fromkeys(group, backward_window(s, count))
    updating = {each.operator for each in host.updates}
    found: dict[tuple[tuple[int, ...], int], list[Update]] = {}
    for update in host.updates:
        reading = (k for v in update.overwrites for k in graph.readers[v] if k not in updating)
        uses = tuple(sorted({window.get(k, 0) for k in reading}))
        found.setdefault((uses, window[update.operator]), []).append(update)
    groups = []
    for (uses, updated), updates in found.items():
        over = sorted({v for update in updates for v in update.overwrites})
        weights = tuple(v for v in over if not updating.issuperset(graph.readers[v]))
        states = tuple(v for v in over if v not in weights)
        gradients = gradient_values(borders, updates)
        sizes = weights, states, graph.bytes_of(gradients)
        groups.append(Group(uses, updated, tuple(updates), *sizes))
    return tuple(groups)


def gradient_values(borders: Borders, updates: Iterable[Update]) -> set[int]:
    """The values that updates read beside the inputs of the graph."""
    read = (v for each in updates for v in borders.graph.operators[each.operator].inputs)
    return {v for v in read if borders.graph.producer[v] >= 0}


def forward_window(stage: int) -> int:
    """Window 0 is in front of the first block; windows are numbered through the step."""
    return 1 + stage


def backward_window(stage: int, count: int) -> int:
    """The backward part of a block, of `count` blocks."""
    return 2 * count - stage
