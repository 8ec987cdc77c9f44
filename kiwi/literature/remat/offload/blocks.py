"""Blocks as OffMate sees them: three ways to run each block, and the weights that blocks use
together."""

from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from kiwi.literature.remat.chain import Borders, Steps, ancestors, read_first
from kiwi.literature.remat.offload.host import Host, Update


@dataclass(frozen=True)
class BlockOption:
    """One way to run a block.

    - `forward`, `backward`: its operators.
    - `forward_seconds`, `backward_seconds`: their time without updates.
    - `stored_bytes`: the memory that stays on the device between both, the block's output included.
    - `sent`, `sent_bytes`: the values that go to the host between both, and their total size.
    - `forward_peak_bytes`, `backward_peak_bytes`: as in `kiwi.literature.remat.chain.Option`.
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
    """Returns the options of a block in Zhao's thesis (section 4.4), without repetition.

    The block keeps all that its backward part reads; or it keeps nothing and runs forward again; or
    it sends to the host the values that take longer to compute than to copy, and computes the
    others again.
    """
    graph, forward = borders.graph, borders.groups.forward[index]
    made = {value for k in forward for value in graph.operators[k].outputs} - borders.shared
    read = (read_first(graph, borders.groups.backward[index]) & made) - borders.handed_on[index + 1]
    again = ancestors(graph, forward, read)
    options = [_option(borders, host, index, (), frozenset())]
    if all(graph.operators[k].recomputable for k in again):
        options.append(_option(borders, host, index, again, frozenset()))
    options.append(_option(borders, host, index, *_cheap(borders, host, index, read)))
    return tuple(dict.fromkeys(options))


def _cheap(
    borders: Borders, host: Host, index: int, read: Set[int]
) -> tuple[Steps, frozenset[int]]:
    """Returns the operators that are computed again, and the values that are copied instead."""
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
    updates = {update.operator for update in host.updates}
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
    """Weights that the same windows of a step use, with the operators that update them.

    - `uses`: the windows in which operators other than updates read the weights, in ascending
      order.
    - `updated`: the window of the updates.
    - `weights`: inputs of the graph that operators other than updates read.
    - `states`: inputs of the graph that only updates read.
    - `gradient_bytes`: the size of the other values that the updates read.
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
        gaps = [
            range(use + 1, following)
            for use, following in zip(self.uses, self.uses[1:], strict=False)
        ]
        return max(gaps, key=len, default=range(0))


def groups_of(borders: Borders, host: Host) -> tuple[Group, ...]:
    """Returns the groups of the weights of all updates.

    Windows are numbered by `forward_window` and `backward_window`.
    """
    graph, count = borders.graph, len(borders.stages)
    window = {
        k: forward_window(stage)
        for stage, group in enumerate(borders.groups.forward)
        for k in group
    }
    for stage, group in enumerate(borders.groups.backward):
        window |= dict.fromkeys(group, backward_window(stage, count))
    updating = {update.operator for update in host.updates}
    updates_of: dict[tuple[tuple[int, ...], int], list[Update]] = {}
    for update in host.updates:
        reading = (
            k for value in update.overwrites for k in graph.readers[value] if k not in updating
        )
        uses = tuple(sorted({window.get(k, 0) for k in reading}))
        updates_of.setdefault((uses, window[update.operator]), []).append(update)
    groups = []
    for (uses, updated), updates in updates_of.items():
        overwritten = sorted({value for update in updates for value in update.overwrites})
        weights = tuple(
            value for value in overwritten if not updating.issuperset(graph.readers[value])
        )
        states = tuple(value for value in overwritten if value not in weights)
        gradients = gradient_values(borders, updates)
        sizes = weights, states, graph.bytes_of(gradients)
        groups.append(Group(uses, updated, tuple(updates), *sizes))
    return tuple(groups)


def gradient_values(borders: Borders, updates: Iterable[Update]) -> set[int]:
    """Returns the values that updates read beside the inputs of the graph."""
    read = (
        value for update in updates for value in borders.graph.operators[update.operator].inputs
    )
    return {value for value in read if borders.graph.producer[value] >= 0}


def forward_window(stage: int) -> int:
    """Returns the window of a stage's forward part.

    Window 0 is in front of the first block. Windows are numbered through the step.
    """
    return 1 + stage


def backward_window(stage: int, count: int) -> int:
    """Returns the window of a stage's backward part, for `count` blocks."""
    return 2 * count - stage
