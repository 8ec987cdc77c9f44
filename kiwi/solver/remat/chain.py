"""A training graph as a chain of stages with options, as dynamic programs over chains see it.

Stage s has forward operators and backward operators. Its *input* is what stage s - 1 hands on.
An option computes forward so that some values are saved, and backward from them, perhaps with
recomputation inside. Besides, the forward part can be run to produce the output alone.

All byte figures leave out the input of the stage and what is resident throughout: the inputs
of the graph, and *shared* values (common nodes, and values that are read across stages other
than from one to the next), which the programs over chains keep from the first to the last use.
"""

import math
from collections.abc import Iterable, Set
from dataclasses import dataclass

from kiwi.solver.remat.graph import RematGraph
from kiwi.solver.remat.linearise import Linearised


@dataclass(frozen=True)
class Option:
    """One way to run a stage forward and, later, backward.

    **Attributes:**

    - `forward`, `backward`: operators in the order they are computed.
    - `seconds`: of both.
    - `saved_bytes`: the stage's values kept in between, its output included.
    - `forward_peak_bytes`, `backward_peak_bytes`: largest memory of the stage's values while
      they run; backward includes the gradients that it reads and hands on.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    seconds: float
    saved_bytes: int
    forward_peak_bytes: int
    backward_peak_bytes: int


@dataclass(frozen=True)
class Stage:
    """A stage: its options, and its forward part run for output and shared values alone.

    `held_gradient_bytes`: gradients and results of the graph that are live after the backward
    part of the next stage, while anything runs before the backward part of this one.
    """

    options: tuple[Option, ...]
    discard: tuple[int, ...]
    discard_seconds: float
    discard_peak_bytes: int
    output_bytes: int
    held_gradient_bytes: int


@dataclass(frozen=True)
class Chain:
    """Stages; `prologue` is computed before the first, `resident_bytes` is held throughout."""

    stages: tuple[Stage, ...]
    prologue: tuple[int, ...]
    resident_bytes: int


@dataclass(frozen=True)
class StageValues:
    """Values at the borders of one stage.

    `before`: handed on by the stage before; `output`: handed on; `gradient_in`: live gradients
    and results before its backward part; `gradient_out`: after it.
    """

    before: frozenset[int]
    output: frozenset[int]
    gradient_in: frozenset[int]
    gradient_out: frozenset[int]


@dataclass(frozen=True)
class Borders:
    """`StageValues` of all stages, and the values that are shared."""

    stages: tuple[StageValues, ...]
    shared: frozenset[int]


def make_chain(graph: RematGraph, groups: Linearised) -> Chain:
    """The chain in which each stage has one option: to save all that its backward part reads."""
    borders = stage_borders(graph, groups)
    stages = tuple(
        make_stage(graph, groups, borders, index, (keep_all_option(graph, groups, borders, index),))
        for index in range(len(groups.forward))
    )
    shared_bytes = graph.bytes_of(borders.shared)
    return Chain(stages, groups.common, graph.resident_bytes + shared_bytes)


def make_stage(
    graph: RematGraph,
    groups: Linearised,
    borders: Borders,
    index: int,
    options: tuple[Option, ...],
) -> Stage:
    """Stage `index` with the given options."""
    values = borders.stages[index]
    # Shared values are computed in the first run of a stage, whichever that is.
    discard = _ancestors(graph, groups.forward[index], values.output | borders.shared)
    hidden = values.before | borders.shared
    held = values.gradient_in
    return Stage(
        options,
        discard,
        _discard_seconds(graph, discard),
        max(segment_bytes(graph, discard, frozenset(), values.output, hidden), default=0),
        graph.bytes_of(values.output),
        graph.bytes_of(held),
    )


def _discard_seconds(graph: RematGraph, discard: tuple[int, ...]) -> float:
    """Infinite where the stage cannot run again, and hence must save."""
    if not all(graph.operators[k].recomputable for k in discard):
        return math.inf
    return sum(graph.operators[k].compute_seconds for k in discard)


def keep_all_option(graph: RematGraph, groups: Linearised, borders: Borders, index: int) -> Option:
    """Forward once, backward once, everything saved that backward reads."""
    return make_option(graph, borders, index, groups.forward[index], groups.backward[index])


def make_option(
    graph: RematGraph,
    borders: Borders,
    index: int,
    forward: tuple[int, ...],
    backward: tuple[int, ...],
) -> Option:
    """The option that computes these operators; what it saves is what backward reads of it."""
    values = borders.stages[index]
    hidden = values.before | borders.shared
    made = {value for k in forward for value in graph.operators[k].outputs} - borders.shared
    saved = frozenset(read_first(graph, backward) & made)
    kept = saved | values.output
    live = saved | values.gradient_in
    return Option(
        forward,
        backward,
        sum(graph.operators[k].compute_seconds for k in forward + backward),
        graph.bytes_of(kept),
        max(segment_bytes(graph, forward, frozenset(), kept, hidden), default=0),
        max(segment_bytes(graph, backward, live, values.gradient_out, hidden), default=0),
    )


def stage_borders(graph: RematGraph, groups: Linearised) -> Borders:
    """Which values cross which borders."""
    count = len(groups.forward)
    forward_stage = {k: s for s, group in enumerate(groups.forward) for k in group}
    backward_stage = {k: s for s, group in enumerate(groups.backward) for k in group}
    outputs: list[set[int]] = [set() for _ in range(count)]
    shared: set[int] = set()
    for value, writer in enumerate(graph.producer):
        if writer in forward_stage:
            stage = forward_stage[writer]
            readers = {forward_stage.get(k, -1) for k in graph.readers[value]} - {-1}
            behind = {backward_stage.get(k, -1) for k in graph.readers[value]} - {-1}
            if (
                readers - {stage, stage + 1}
                or behind - {stage, stage + 1}
                or value in graph.results
            ):
                shared.add(value)
            elif stage + 1 in readers | behind:
                outputs[stage].add(value)
        elif writer in groups.common:
            shared.add(value)
    gradients = [_gradients(graph, backward_stage, s) for s in range(count + 1)]
    stages = tuple(
        StageValues(
            frozenset(outputs[s - 1]) if s else frozenset(),
            frozenset(outputs[s]),
            gradients[s + 1],
            gradients[s],
        )
        for s in range(count)
    )
    return Borders(stages, frozenset(shared))


def _gradients(graph: RematGraph, backward_stage: dict[int, int], stage: int) -> frozenset[int]:
    """Values written by backward parts from `stage` on, read before it or results of the graph."""
    return frozenset(
        value
        for value, writer in enumerate(graph.producer)
        if backward_stage.get(writer, -1) >= stage
        and (
            value in graph.results
            or any(backward_stage.get(k, stage) < stage for k in graph.readers[value])
        )
    )


def read_first(graph: RematGraph, steps: Iterable[int]) -> set[int]:
    """Values that `steps` read before they write them."""
    read: set[int] = set()
    written: set[int] = set()
    for k in steps:
        read.update(value for value in graph.operators[k].inputs if value not in written)
        written.update(graph.operators[k].outputs)
    return read


def segment_bytes(
    graph: RematGraph,
    steps: tuple[int, ...],
    before: Set[int],
    after: Set[int],
    hidden: Set[int],
) -> list[int]:
    """Memory during each of `steps`, with `before` live at the start and `after` kept at the end.

    Values in `hidden`, and values that no step writes and that are not live before, do not count.
    A value that is computed again is dropped after its last reading before that.
    """
    live = set(before) - hidden
    held = graph.bytes_of(live)
    memory = []
    for k, dying in zip(steps, _last_readings(graph, steps, before, after), strict=True):
        operator = graph.operators[k]
        born = [value for value in operator.outputs if value not in hidden and value not in live]
        live.update(born)
        held += graph.bytes_of(born)
        memory.append(held + operator.temporary_bytes)
        held -= graph.bytes_of([value for value in dying if value in live])
        live.difference_update(dying)
    return memory


def _last_readings(
    graph: RematGraph, steps: tuple[int, ...], before: Set[int], after: Set[int]
) -> list[list[int]]:
    """For each step the values that nothing needs behind it, of those that it may drop."""
    needed = set(after)
    dying: list[list[int]] = []
    for place in reversed(range(len(steps))):
        operator = graph.operators[steps[place]]
        droppable = {*operator.inputs, *operator.outputs, *(() if place else before)}
        dying.append([value for value in droppable if value not in needed])
        needed.difference_update(operator.outputs)
        needed.update(operator.inputs)
    dying.reverse()
    return dying


def _ancestors(graph: RematGraph, group: tuple[int, ...], values: Set[int]) -> tuple[int, ...]:
    """Operators of `group` that are needed for `values`, in the order of the group."""
    needed = set(values)
    chosen = []
    for k in reversed(group):
        if needed.intersection(graph.operators[k].outputs):
            chosen.append(k)
            needed.update(graph.operators[k].inputs)
    return tuple(reversed(chosen))
