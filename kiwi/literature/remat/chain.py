"""A training graph as a chain of stages with options, as dynamic programs over chains see it.

Stage s has forward operators and backward operators. Its *input* is what stage s - 1 hands on.
An option computes forward so that some values are saved, and backward from them, perhaps with
recomputation inside. Besides, the forward part can be run to produce the output alone.

All byte figures leave out the input of the stage and what is resident throughout: the inputs
of the graph, and *shared* values (common nodes, and values that are read across stages other
than from one to the next), which the programs over chains keep from the first to the last use.

**Linearisation** of a training graph into a chain of groups (MAP, section 5.2, algorithm 2).
Forward operators are taken in the given order and appended to the current group. A group ends where
no value of it or of earlier groups is still to be read by later forward operators, except those of
the operator just appended. Values of *common* operators (non-differentiable: without a backward
operator, and reading only common values, e.g. an attention mask) are read all over the network;
they are left out of that account.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from kiwi.errors import InvalidProblemError
from kiwi.literature.remat.graph import RematGraph
from kiwi.literature.remat.simulate import memory_bytes
from kiwi.solver.schedule import Schedule

Steps = tuple[int, ...]


@dataclass(frozen=True)
class Option:
    """One way to run a stage forward and, later, backward.

    - `seconds`: of `forward` and `backward`, operators in the order they are computed.
    - `saved_bytes`: the stage's values kept in between, its output included.
    - `forward_peak_bytes`, `backward_peak_bytes`: largest memory of the stage's values while
      they run; backward includes the gradients that it reads and hands on.
    """

    forward: Steps
    backward: Steps
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
    discard: Steps
    discard_seconds: float
    discard_peak_bytes: int
    output_bytes: int
    held_gradient_bytes: int


@dataclass(frozen=True)
class Chain:
    """Stages; `prologue` is computed before the first, `resident_bytes` is held throughout."""

    stages: tuple[Stage, ...]
    prologue: Steps
    resident_bytes: int


@dataclass(frozen=True)
class Linearised:
    """Operators by role and stage, each list in the given order; the last stage has the loss.

    `common` ones belong to no stage and come first.
    """

    forward: tuple[tuple[int, ...], ...]
    backward: tuple[tuple[int, ...], ...]
    common: tuple[int, ...]


@dataclass(frozen=True)
class Borders:
    """The stages of a graph, the values at their borders, and those that are shared.

    Border s is that in front of stage s: `handed_on[s]` pass it forward; `gradients[s]` are the
    gradients and results that are live there between the backward parts of both sides.
    """

    graph: RematGraph
    groups: Linearised
    handed_on: tuple[frozenset[int], ...]
    gradients: tuple[frozenset[int], ...]
    shared: frozenset[int]

    @property
    def stages(self) -> range:
        """The numbers of the stages."""
        return range(len(self.groups.forward))

    def _peak_bytes(self, index: int, steps: Steps, before: Set[int], after: Set[int]) -> int:
        """The largest memory of a stage's values while `steps` run, as `memory_bytes` takes it."""
        hidden = self.handed_on[index] | self.shared
        return max(memory_bytes(self.graph, Schedule(steps), before, after, hidden), default=0)

    def option(self, index: int, forward: Steps, backward: Steps) -> Option:
        """The option of a stage that computes these; what it saves is what backward reads of it."""
        graph = self.graph
        made = {value for k in forward for value in graph.operators[k].outputs} - self.shared
        saved = read_first(graph, backward) & made
        kept, live = self.handed_on[index + 1] | saved, self.gradients[index + 1] | saved
        return Option(
            forward,
            backward,
            graph.seconds_of(forward + backward),
            graph.bytes_of(kept),
            self._peak_bytes(index, forward, frozenset(), kept),
            self._peak_bytes(index, backward, live, self.gradients[index]),
        )

    def keep_all(self, index: int) -> Option:
        """Forward once, backward once, everything saved that backward reads."""
        return self.option(index, self.groups.forward[index], self.groups.backward[index])

    def stage(self, index: int, options: tuple[Option, ...]) -> Stage:
        """A stage with the given options."""
        graph, output = self.graph, self.handed_on[index + 1]
        # Shared values are computed in the first run of a stage, whichever that is.
        discard = ancestors(graph, self.groups.forward[index], output | self.shared)
        again = all(graph.operators[k].recomputable for k in discard)
        return Stage(
            options,
            discard,
            graph.seconds_of(discard) if again else math.inf,
            self._peak_bytes(index, discard, frozenset(), output),
            graph.bytes_of(output),
            graph.bytes_of(self.gradients[index + 1]),
        )

    def chain(self, options: Sequence[tuple[Option, ...]]) -> Chain:
        """The stages with the options of each."""
        stages = tuple(self.stage(index, each) for index, each in enumerate(options))
        shared_bytes = self.graph.bytes_of(self.shared)
        return Chain(stages, self.groups.common, self.graph.resident_bytes + shared_bytes)


def make_chain(graph: RematGraph) -> Chain:
    """The chain in which each stage has one option: to save all that its backward part reads."""
    borders = stage_borders(graph)
    return borders.chain([(borders.keep_all(index),) for index in borders.stages])


def stage_borders(graph: RematGraph) -> Borders:
    """The stages of `graph`, and which values cross which borders; raises as `linearise` does."""
    groups = linearise(graph)
    forward_stage = {k: s for s, group in enumerate(groups.forward) for k in group}
    backward_stage = {k: s for s, group in enumerate(groups.backward) for k in group}
    stage_of = forward_stage | backward_stage
    handed_on: list[set[int]] = [set() for _ in range(len(groups.forward) + 1)]
    shared = {v for v, writer in enumerate(graph.producer) if writer in groups.common}
    for value, writer in enumerate(graph.producer):
        if writer in forward_stage:
            stage = forward_stage[writer]
            reading = {stage_of[k] for k in graph.readers[value] if k in stage_of}
            if value in graph.results or reading - {stage, stage + 1}:
                shared.add(value)
            elif stage + 1 in reading:
                handed_on[stage + 1].add(value)
    gradients = tuple(_gradients(graph, backward_stage, s) for s in range(len(handed_on)))
    return Borders(graph, groups, tuple(map(frozenset, handed_on)), gradients, frozenset(shared))


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


def ancestors(graph: RematGraph, group: Steps, values: Set[int]) -> Steps:
    """Operators of `group` that are needed for `values`, in the order of the group."""
    needed = set(values)
    chosen = []
    for k in reversed(group):
        if needed.intersection(graph.operators[k].outputs):
            chosen.append(k)
            needed.update(graph.operators[k].inputs)
    return tuple(reversed(chosen))


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
