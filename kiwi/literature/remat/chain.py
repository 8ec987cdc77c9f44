"""A training graph as a chain of stages with options, the input of dynamic programs over chains.

A stage s has forward operators and backward operators. Its *input* is what stage s - 1 hands on. An
option runs the forward part so that some values are saved, and later the backward part from these
values, perhaps with recomputation. The forward part can also be run to produce the output alone.

All numbers of bytes leave out the input of the stage and the resident values: the inputs of the
graph and the *shared* values. Shared values are values of common operators, and values that are
read across stages other than from one stage to the next. Programs over chains keep shared values
from the first to the last use.

**Linearisation** divides a training graph into a chain of groups (MAP, section 5.2, algorithm 2).
Forward operators are taken in the given order and appended to the current group. A group ends if
later forward operators read no value of it or of earlier groups, except the values of the operator
just appended. *Common* operators (non-differentiable) have no backward operator and read only
common values, e.g. an attention mask. Their values are read all over the network and are left out
of that account.
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

    - `forward`, `backward`: operators in the order they are computed.
    - `seconds`: the time of both.
    - `saved_bytes`: the stage's values kept between both, its output included.
    - `forward_peak_bytes`, `backward_peak_bytes`: the largest memory of the stage's values while
      the part runs. The backward peak includes the gradients that it reads and hands on.
    """

    forward: Steps
    backward: Steps
    seconds: float
    saved_bytes: int
    forward_peak_bytes: int
    backward_peak_bytes: int


@dataclass(frozen=True)
class Stage:
    """A stage with its options, and the run of its forward part for output and shared values alone.

    - `discard`: the operators of that run; `discard_seconds`, `discard_peak_bytes`: its time,
      infinite if it may not be repeated, and its peak.
    - `output_bytes`: the values that the stage hands on.
    - `held_gradient_bytes`: gradients and results of the graph that are live after the backward
      part of the next stage, as long as anything runs before the backward part of this stage.
    """

    options: tuple[Option, ...]
    discard: Steps
    discard_seconds: float
    discard_peak_bytes: int
    output_bytes: int
    held_gradient_bytes: int


@dataclass(frozen=True)
class Chain:
    """A chain of stages. `prologue` is computed before the first, `resident_bytes` are held
    throughout."""

    stages: tuple[Stage, ...]
    prologue: Steps
    resident_bytes: int


@dataclass(frozen=True)
class Linearised:
    """Operators by role and stage, each list in the given order. The last stage has the loss.

    `common` operators belong to no stage and come first.
    """

    forward: tuple[tuple[int, ...], ...]
    backward: tuple[tuple[int, ...], ...]
    common: tuple[int, ...]


@dataclass(frozen=True)
class Borders:
    """The stages of a graph, the values at their borders, and the shared values.

    Border s is in front of stage s. `handed_on[s]` are the values that pass it forward.
    `gradients[s]` are the gradients and results that are live there between the backward parts of
    both sides.
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
        """Returns the largest memory of a stage's values while `steps` run, in bytes.

        `before` and `after` are as in `kiwi.literature.remat.simulate.memory_bytes`.
        """
        hidden = self.handed_on[index] | self.shared
        return max(memory_bytes(self.graph, Schedule(steps), before, after, hidden), default=0)

    def option(self, index: int, forward: Steps, backward: Steps) -> Option:
        """Returns the option of a stage that computes `forward` and `backward`.

        The option saves the values of `forward` that `backward` reads.
        """
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
        """Returns the option that runs both parts once and saves all that backward reads."""
        return self.option(index, self.groups.forward[index], self.groups.backward[index])

    def stage(self, index: int, options: tuple[Option, ...]) -> Stage:
        """Returns a stage with the given options."""
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
        """Returns the chain of all stages; `options` holds the options of each stage."""
        stages = tuple(
            self.stage(index, stage_options) for index, stage_options in enumerate(options)
        )
        shared_bytes = self.graph.bytes_of(self.shared)
        return Chain(stages, self.groups.common, self.graph.resident_bytes + shared_bytes)


def make_chain(graph: RematGraph) -> Chain:
    """Returns the chain in which each stage has one option: to save all that backward reads."""
    borders = stage_borders(graph)
    return borders.chain([(borders.keep_all(index),) for index in borders.stages])


def stage_borders(graph: RematGraph) -> Borders:
    """Returns the stages of `graph` and the values at their borders; raises as `linearise` does."""
    groups = linearise(graph)
    forward_stage = {k: stage for stage, group in enumerate(groups.forward) for k in group}
    backward_stage = {k: stage for stage, group in enumerate(groups.backward) for k in group}
    stage_of = forward_stage | backward_stage
    handed_on: list[set[int]] = [set() for _ in range(len(groups.forward) + 1)]
    shared = {value for value, writer in enumerate(graph.producer) if writer in groups.common}
    for value, writer in enumerate(graph.producer):
        if writer in forward_stage:
            stage = forward_stage[writer]
            reading = {stage_of[k] for k in graph.readers[value] if k in stage_of}
            if value in graph.results or reading - {stage, stage + 1}:
                shared.add(value)
            elif stage + 1 in reading:
                handed_on[stage + 1].add(value)
    gradients = tuple(_gradients(graph, backward_stage, stage) for stage in range(len(handed_on)))
    return Borders(graph, groups, tuple(map(frozenset, handed_on)), gradients, frozenset(shared))


def _gradients(graph: RematGraph, backward_stage: dict[int, int], stage: int) -> frozenset[int]:
    """Returns the values that backward parts from `stage` on write for earlier stages, or as
    results."""
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
    """Returns the values that `steps` read before they write them."""
    read: set[int] = set()
    written: set[int] = set()
    for k in steps:
        read.update(value for value in graph.operators[k].inputs if value not in written)
        written.update(graph.operators[k].outputs)
    return read


def ancestors(graph: RematGraph, group: Steps, values: Set[int]) -> Steps:
    """Returns the operators of `group` that are needed for `values`, in the order of the group."""
    needed = set(values)
    chosen = []
    for k in reversed(group):
        if needed.intersection(graph.operators[k].outputs):
            chosen.append(k)
            needed.update(graph.operators[k].inputs)
    return tuple(reversed(chosen))


def linearise(graph: RematGraph) -> Linearised:
    """Returns the stages of `graph`; raises as `backward_operators` does."""
    backward = backward_operators(graph)
    common = _common_operators(graph, backward)
    forward = [k for k in graph.order if k not in backward and k not in common]
    groups = _groups(graph, forward)
    stage_of = {operator: stage for stage, group in enumerate(groups) for operator in group}
    backward_stages = backward_owners(graph, backward, stage_of, len(groups) - 1)
    return Linearised(
        tuple(map(tuple, groups)),
        tuple(
            tuple(k for k in graph.order if backward_stages.get(k) == stage)
            for stage in range(len(groups))
        ),
        tuple(k for k in graph.order if k in common),
    )


def backward_operators(graph: RematGraph) -> set[int]:
    """Returns the backward operators and all operators that depend on them (gradients, updates).

    Raises `kiwi.errors.InvalidProblemError` if no backward operator is known.
    """
    if not graph.backward_of:
        raise InvalidProblemError(
            "the graph cannot be divided into stages: no backward operator is known",
            cause="`backward_of` is empty",
            suggestion="a planner for general graphs, such as remat",
        )
    operators = {backward for _, backward in graph.backward_of}
    for k in graph.order:
        if operators.intersection(graph.predecessors(k)):
            operators.add(k)
    return operators


def _common_operators(graph: RematGraph, backward: set[int]) -> set[int]:
    """Returns the common operators (lemma 5.4), starting from readers of inputs of the graph."""
    paired = {forward for forward, _ in graph.backward_of}
    common: set[int] = set()
    for k in graph.order:
        if k not in paired and k not in backward and common.issuperset(graph.predecessors(k)):
            common.add(k)
    return common


def _groups(graph: RematGraph, forward: list[int]) -> list[list[int]]:
    """Returns the groups of algorithm 2.

    `read_until` is the place of the last forward operator that reads a value of an operator before
    the current one.
    """
    place = {k: at for at, k in enumerate(forward)}
    groups: list[list[int]] = [[]]
    read_until = -1
    for at, k in enumerate(forward):
        groups[-1].append(k)
        readers = (
            reader for value in graph.operators[k].outputs for reader in graph.readers[value]
        )
        last = max((place[reader] for reader in readers if reader in place), default=-1)
        if read_until <= at < last:
            groups.append([])
        read_until = max(read_until, last)
    return [group for group in groups if group]


def backward_owners(
    graph: RematGraph, backward: set[int], owners: Mapping[int, int], last: int
) -> dict[int, int]:
    """Returns the number of each backward operator, in the numbering of `owners`.

    A backward operator gets the number of its forward operator, or `last` without one. The number
    is never greater than the number of an operator that it depends on, because backward parts run
    in reverse.
    """
    partner = {after: before for before, after in graph.backward_of}
    number_of: dict[int, int] = {}
    for k in graph.order:
        if k in backward:
            earlier = [
                number_of[predecessor]
                for predecessor in graph.predecessors(k)
                if predecessor in number_of
            ]
            number_of[k] = min([owners.get(partner.get(k, -1), last), *earlier])
    return number_of
