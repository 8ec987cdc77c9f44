"""Memory of resharded operands: a copy in the layout that the reader expects.

If a unit expects an operand in another layout than the stored one, the resharded copy is held while
the unit runs, beside the original. The problem gets a node for each such read, between producer and
reader, with these options:

- *direct(d)*: the value is stored in layout d and is read in this layout. No copy takes memory.
- *copy(d, t)*: the value is stored in another layout. A copy in layout d is held while the reader
  runs. If the reader is recomputed, a copy is held again at time t. A copy takes twice its memory
  if the reader cannot read the gathered value as it lies (`Kernel.transposed_copies`).
- *kept(d)*: the value is stored in another layout. An earlier reader's copy in layout d is held
  until this reader reads it. So parameters gathered for the forward pass stay gathered until the
  backward pass has read them: FSDP without resharding in between. Parameters gathered for a layer
  that is recomputed stay gathered for its gradients.

For any choice of producer and reader, exactly one of *direct* and *copy* is allowed. *Kept* is
offered once everything else is decided (`kiwi.problem.kept_copies`), if an earlier reader expects
the same layout. A recomputed unit then counts as two readers, with a node each. Resharding is
priced on the edge between producer and reader. For *kept*, the edge between producer and copy gives
this price back.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from kiwi.hlo.program import Value
from kiwi.hlo.units import UnitGraph
from kiwi.memory.live_ranges import LiveRanges
from kiwi.memory.loop_bodies import OperandRead
from kiwi.memory.residency import Residency
from kiwi.memory.timeline import Buffer
from kiwi.mesh import TensorSharding
from kiwi.problem.strategies import ShardingStrategy

CopiedBytes = Callable[[Value, TensorSharding], int]
"""Returns the bytes of one device's part of a copy of a value in a layout."""

NEGLIGIBLE = 0.004
"""Copies below this fraction of the memory limit take no memory, except while they are kept: their
nodes would be too many. In an estimate the fraction refers to the bytes of all values on a device,
if these are fewer than the limit."""


Transposes = Callable[[TensorSharding, TensorSharding], bool]
"""Returns whether the copy of an operand from the stored to the expected layout is transposed."""


def never(stored: TensorSharding, target: TensorSharding) -> bool:
    """Returns False for all layouts: no copy is transposed."""
    return False


class Reading(Enum):
    """How a reader gets its operand; the module's docstring explains the three ways."""

    DIRECT = "direct"
    COPY = "copy"
    KEPT = "kept"


class Reader(Enum):
    """The runs of a unit that read a copy: all, only the first, or only the recomputation."""

    ALL = "all"
    FIRST = "first"
    AGAIN = "again"


@dataclass(frozen=True)
class CopyOption:
    """One option of a copy.

    - `target`: the layout in which the reader reads the value.
    - `again_at`: the time at which the reader is recomputed; None if it is not.
    - `is_transposed`: whether the reader transposes the copy.
    """

    target: TensorSharding
    reading: Reading
    again_at: int | None = None
    is_transposed: bool = False

    @property
    def is_copy(self) -> bool:
        """Whether the value is stored in another layout."""
        return self.reading is not Reading.DIRECT

    @property
    def again(self) -> tuple[int, ...]:
        """The times at which the reader is recomputed: one or none."""
        return () if self.again_at is None else (self.again_at,)


TimesAgain = Callable[[int, CopyOption], Sequence[int]]
"""Returns the points of time at which a unit is recomputed, under an option of one of its
copies."""


@dataclass(frozen=True, eq=False)
class CopyNode:
    """The node of read number `read` of unit `unit`.

    - `moved`: the value that is copied: the unit's operand in the dtype that `Kernel.moved` gives.
    - `transposes`: whether the reader transposes a copy, by stored layout and target.
    - `earlier`: the number, among all copy nodes, of the node whose copy *kept* holds on to.
    - `is_negligible`: whether the copy's memory counts only while the copy is kept.
    - `reader`: the runs of the unit that read the copy.
    """

    unit: int
    read: int
    moved: Value
    options: tuple[CopyOption, ...]
    transposes: Transposes = never
    earlier: int | None = None
    is_negligible: bool = False
    reader: Reader = Reader.ALL

    @property
    def value(self) -> int:
        """The index of the value that is read."""
        return self.moved.index

    @property
    def operand_read(self) -> OperandRead:
        """The unit, the read, and whether the recomputation reads, for a node with one reader."""
        return OperandRead(self.unit, self.read, self.reader is Reader.AGAIN)

    def buffers(
        self,
        option: CopyOption,
        copied_bytes: CopiedBytes,
        ranges: LiveRanges,
        copies: Sequence["CopyNode"],
        again: TimesAgain,
    ) -> tuple[Buffer, ...]:
        """The buffers that one option holds.

        - `copied_bytes`: the local bytes of a value's copy in a layout.
        - `ranges`: the live ranges of the step.
        - `copies`: all copy nodes of the problem.
        - `again`: when a unit is recomputed under an option.
        """
        if not option.is_copy:
            return ()
        maker, spans = self.unit, self._spans(option, ranges, again)
        transposed = spans if option.is_transposed and not self.is_negligible else []
        if option.reading is Reading.KEPT:
            earlier = self._earlier(copies)
            since = earlier._spans(earlier.options[0], ranges, again)[-1][1]
            # Readers that run at the same point of time hold one copy.
            spans = [(since, spans[-1][1])] if since < spans[-1][1] else []
            maker = self._maker(copies)
        elif self.is_negligible:
            spans = []
        size = copied_bytes(self.moved, option.target)
        return tuple(Buffer(*span, size, "copy", maker) for span in (*spans, *transposed))

    def _spans(
        self, option: CopyOption, ranges: LiveRanges, again: TimesAgain
    ) -> list[tuple[int, int]]:
        """Returns the spans of time in which the node's readers run."""
        first = [ranges.operands_held(self.unit)] if self.reader is not Reader.AGAIN else []
        times = again(self.unit, option) if self.reader is not Reader.FIRST else ()
        return [*first, *((time, time + 1) for time in times)]

    def _earlier(self, copies: Sequence["CopyNode"]) -> "CopyNode":
        assert self.earlier is not None
        return copies[self.earlier]

    def _maker(self, copies: Sequence["CopyNode"]) -> int:
        """Returns the unit that makes the copy that *kept* holds on to."""
        return self.unit if self.earlier is None else self._earlier(copies)._maker(copies)

    def wanted(
        self, strategy: ShardingStrategy, layouts: Mapping[int, TensorSharding]
    ) -> TensorSharding:
        """The layout of the copy under the unit's strategy. `layouts` gives the layout of each
        stored value."""
        return strategy.reads[self.read]

    def allowed_after(self, layouts: Sequence[TensorSharding]) -> np.ndarray:
        """Boolean [layouts, options]: which options agree with the stored layout."""
        index, targets = self._target_numbers()
        is_copy = np.array([option.is_copy for option in self.options])
        stored = np.array([index.get(layout, -1) for layout in layouts])
        allowed = (stored[:, None] != targets[None, :]) == is_copy[None, :]
        if self.transposes is never:
            return allowed
        is_transposed = np.array([option.is_transposed for option in self.options])
        transposed = [[self.transposes(layout, target) for target in index] for layout in layouts]
        return allowed & (~is_copy | (np.array(transposed)[:, targets] == is_transposed))

    def allowed_before(
        self, wanted: Sequence[TensorSharding], times: Sequence[int | None]
    ) -> np.ndarray:
        """Boolean [options, wanted x times]: which options agree with the reader's choice.

        - `wanted`: the layouts that the reader may expect.
        - `times`: the times at which the reader may be recomputed; None for no recomputation.
        """
        index, targets = self._target_numbers()
        is_copy = np.array([option.is_copy for option in self.options])
        number_of_time = {time: k for k, time in enumerate(times)}
        again = np.array([number_of_time.get(option.again_at, -1) for option in self.options])
        expected = np.array([index.get(layout, -1) for layout in wanted])
        same_target = targets[:, None] == expected[None, :]
        same_time = again[:, None] == np.arange(len(times))[None, :]
        same_time |= ~is_copy[:, None]
        allowed = same_target[:, :, None] & same_time[:, None, :]
        return allowed.reshape(len(self.options), -1)

    def option_between(
        self, stored: TensorSharding, wanted: TensorSharding, reader: Residency
    ) -> int:
        """The index of the first option that agrees with the layout `stored` by the producer, the
        layout `wanted` by the reader, and the reader's residency."""
        is_copy = stored != wanted
        is_transposed = is_copy and self.transposes(stored, wanted)
        asked = (wanted, is_copy, is_transposed)
        return next(
            number
            for number, option in enumerate(self.options)
            if (option.target, option.is_copy, option.is_transposed) == asked
            and (not is_copy or option.again_at == reader.recompute_at)
        )

    @property
    def is_kept(self) -> np.ndarray:
        """Boolean [options]: which options hold on to an earlier copy."""
        return np.array([option.reading is Reading.KEPT for option in self.options])

    def _target_numbers(self) -> tuple[dict[TensorSharding, int], np.ndarray]:
        """Returns the number of each distinct target, and the target's number for each option."""
        index: dict[TensorSharding, int] = {}
        numbers = [index.setdefault(option.target, len(index)) for option in self.options]
        return index, np.array(numbers)


@dataclass(frozen=True, eq=False)
class GatheredResult(CopyNode):
    """The node of a result that takes over the donated argument `argument`, if collectives bring
    the result into the argument's layout and the compiler does not let collectives write into the
    argument's buffer (`TargetFacts.copies_gathered_results`).

    The gathered result is held until the step ends. Readers of the argument read a copy of the
    argument, which is made at the start of the step.
    """

    argument: int = -1

    def wanted(
        self, strategy: ShardingStrategy, layouts: Mapping[int, TensorSharding]
    ) -> TensorSharding:
        """The argument's layout."""
        return layouts[self.argument]

    def buffers(
        self,
        option: CopyOption,
        copied_bytes: CopiedBytes,
        ranges: LiveRanges,
        copies: Sequence[CopyNode],
        again: TimesAgain,
    ) -> tuple[Buffer, ...]:
        """The buffers that one option holds. Parameters: as in `CopyNode.buffers`."""
        if not option.is_copy:
            return ()
        size, made = copied_bytes(self.moved, option.target), ranges.first_run[self.unit]
        readers = ranges.units.readers.get(self.argument, ())
        lasts = (ranges.until(None, ranges.first_run[reader]) for reader in readers)
        spans = (0, max(lasts, default=0) + 1), (made, ranges.horizon)
        return tuple(Buffer(*span, size, "copy", self.unit) for span in spans)


def of_each_reader(node: CopyNode) -> Iterator[CopyNode]:
    """Yields a node with one option as several nodes, one for each run of its unit."""
    (option,) = node.options
    if option.again_at is None:
        yield replace(node, reader=Reader.FIRST)
    else:
        yield from (replace(node, reader=reader) for reader in (Reader.FIRST, Reader.AGAIN))


def copy_node(
    unit: int,
    read: int,
    moved: Value,
    layouts: Sequence[TensorSharding],
    wanted: Sequence[TensorSharding],
    residencies: Sequence[Residency],
    transposes: Transposes = never,
) -> CopyNode | None:
    """Returns the node of one read; None if the stored and the expected layout never differ.

    - `unit`, `read`, `moved`, `transposes`: as in `CopyNode`.
    - `layouts`: the layouts in which the producer may store the value.
    - `wanted`: the layouts that the reader may expect.
    - `residencies`: the residencies of the reader.
    """
    targets, stored = sorted(set(wanted)), set(layouts)
    if len(targets) == 1 and stored == set(targets):
        return None
    times = list(dict.fromkeys(residency.recompute_at for residency in residencies))
    options = [CopyOption(target, Reading.DIRECT) for target in targets if target in stored]
    options += [
        CopyOption(target, Reading.COPY, time, is_transposed)
        for target in targets
        for is_transposed in sorted(
            {transposes(layout, target) for layout in stored if layout != target}
        )
        for time in times
    ]
    return CopyNode(unit, read, moved, tuple(options), transposes)


def that_keeps(node: CopyNode, earlier: int, *, always: bool) -> CopyNode:
    """Returns a node of one reader and target with the option *kept* added: it holds on to the copy
    that node `earlier` makes or keeps. With `always`, *kept* is the only option."""
    (copied,) = node.options
    kept_option = replace(copied, reading=Reading.KEPT)
    return replace(
        node, options=(kept_option,) if always else (copied, kept_option), earlier=earlier
    )


def readers_of_copies(
    units: UnitGraph, copies: Iterable[CopyNode], kept: frozenset[OperandRead] | None
) -> Iterator[CopyNode]:
    """Yields, for copy nodes with one option each, a node for each reader. A reader gets the option
    to keep the copy of the reader before it in the same loop body. A recomputed unit reads twice.

    `kept`: the reads that keep, and have only this option; None leaves all choices open.
    """
    nodes = (_RunningReader.of(units, node) for copy in copies for node in of_each_reader(copy))
    latest: dict[tuple[Any, ...], tuple[int, _RunningReader]] = {}
    for number, reader in enumerate(sorted(nodes, key=lambda reader: reader.runs_at)):
        copy, before = reader.node, latest.get(reader.key)
        if before is None or before[1].runs_at < reader.runs_at:
            latest[reader.key] = number, reader
            is_open = kept is None or copy.operand_read in kept
            if before is not None and is_open and before[1].may_share and reader.may_share:
                copy = that_keeps(copy, before[0], always=kept is not None)
        yield copy


@dataclass(frozen=True, eq=False)
class _RunningReader:
    """A node of one reader.

    - `runs_at`: the sort key of the order in which readers run. Reads of one run have equal keys.
    - `key`: equal for all readers that might share a copy: the value and dtype that is moved, the
      layout, and the loop's body.
    - `may_share`: whether each iteration of the body has a value of its own.
    """

    node: CopyNode
    runs_at: tuple[int, ...]
    key: tuple[Any, ...]
    may_share: bool

    @classmethod
    def of(cls, units: UnitGraph, node: CopyNode) -> "_RunningReader":
        program, unit = units.graph.program, units.units[node.unit]
        runs_at: tuple[int, ...] = (node.unit,)
        around = program.loops_around(unit.loop)
        if node.reader is Reader.AGAIN:
            # The recomputation runs before the unit at `time`, in no deeper loop than this unit
            # (`kiwi.memory.loop_bodies`).
            (time,) = node.options[0].again
            runs_at = time - 1, len(around), node.unit
            around = program.loops_around(units.units[time].loop)[: len(around)]
        body, home = next(reversed(around), None), program.loop_of(node.value)
        spaces = [None if k is None else program.loops[k].space for k in (body, home)]
        key = node.value, node.moved.dtype, node.options[0].target, body
        is_inside = units.border(unit) is None and spaces[0] == spaces[1]
        return cls(node, runs_at, key, is_inside)
