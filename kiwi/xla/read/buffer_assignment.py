"""What a compiled program holds in memory, and when: read from XLA's buffer assignment.

Positions are places in the module's schedule, with the computations that a `while`, `call` or
`conditional` runs put in front of it. A buffer lives from the instruction that defines it
through the last one that reads it, under whatever name: a buffer keeps its identity through
tuples, barriers and bitcasts, which XLA lists as aliases. Buffers that share memory at the same
time (an update in place, an argument and the result that takes it over) count once, as the one
place that XLA gave them.

What it holds **beyond the prediction** becomes memory of the problem (`excess`). XLA's schedule is
aligned with the plan's by name scopes: a unit runs around the median position of its instructions,
and no later than any unit behind it. At each unit's time the correction is by how much the compiled
memory exceeds the predicted, where it does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kiwi.interval import Interval, curve_bytes
from kiwi.xla.read.hlo_text import HOST_SPACE
from kiwi.xla.read.name_scopes import Scope, scope_of
from kiwi.xla.read.protos import parse

_FORWARDS = frozenset({"tuple", "get-tuple-element", "opt-barrier", "bitcast", "while"})
"""Instructions whose results are their operands, under another name."""

_CARRIES = _FORWARDS | {"copy", "copy-start", "copy-done"}
HOST_ONLY: Mapping[int, str] = {HOST_SPACE: "host"}
"""Memories other than the device's, by color."""

_MOST_HOPS = 16
"""Through instructions without metadata of their own."""

_FREE = 1
"""The kind of a trace event that is neither an allocation nor a sharing."""

_RUNS_COMPUTATIONS = frozenset({"while", "call", "conditional", "async-start"})


_Place = tuple[int, tuple[int, ...]]
"""An instruction, and the element of its result."""


@dataclass(frozen=True)
class LiveBuffer:
    """One buffer that is alive at the compiled peak, on one device.

    - `instruction`, `opcode`: the instruction that defines it. `op_name`: its metadata.
    - `kind`: "argument", "output" or "temporary". `argument`: the flat argument's position.
    - `start`, `end`: positions of the schedule, half-open.
    """

    bytes: int
    kind: str
    instruction: str
    opcode: str
    op_name: str
    start: int
    end: int
    argument: int | None = None

    @property
    def scope(self) -> Scope | None:
        """The unit whose computation defines it; None if the metadata names none."""
        return scope_of(self.op_name)


@dataclass(frozen=True)
class CompiledMemory:
    """Memory over the schedule of a compiled program, on one device.

    - `curve_bytes[p]`: bytes held while the instruction at position p runs: arguments, results and
      live temporaries.
    - `units[p]`: the unit that this instruction belongs to, -1 if unknown.
    - `peak_position`: the first position of the largest value.
    - `at_peak`: the buffers alive there, largest first.
    - `fragmentation_bytes`: the allocated temporaries less those alive at the peak.
    """

    curve_bytes: tuple[int, ...]
    units: tuple[int, ...]
    peak_position: int
    at_peak: tuple[LiveBuffer, ...]
    fragmentation_bytes: int


@dataclass(frozen=True)
class BufferSizes:
    """Bytes that a program allocates on one device, as `Compiled.memory_analysis()` names them.
    Aliased bytes are an argument and an output in one."""

    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    alias_bytes: int


def read_memory(
    module: bytes, assignment: bytes, other_memories: Mapping[int, str] = HOST_ONLY
) -> CompiledMemory:
    """Reads a serialised `HloModuleProto` and `BufferAssignmentProto`."""
    program = _Program(parse("Module", module))
    buffers = _on_device(parse("BufferAssignment", assignment), other_memories)
    temporaries, always = _places(program, buffers)
    lives = (Interval(buffer.start, buffer.end, buffer.bytes) for buffer in temporaries)
    curve = curve_bytes(lives, len(program.order)) + sum(buffer.bytes for buffer in always)
    peak = int(np.argmax(curve)) if len(curve) else 0
    alive = [buffer for buffer in temporaries if buffer.start <= peak < buffer.end]
    allocated = _allocated_bytes(buffers)
    return CompiledMemory(
        tuple(int(held_bytes) for held_bytes in curve),
        tuple(program.unit_at(position) for position in range(len(program.order))),
        peak,
        tuple(sorted([*alive, *always], key=lambda buffer: (-buffer.bytes, buffer.instruction))),
        allocated - sum(buffer.bytes for buffer in alive),
    )


def read_buffers(
    module: bytes, assignment: bytes, other_memories: Mapping[int, str] = HOST_ONLY
) -> tuple[LiveBuffer, ...]:
    """All buffers of one device, temporaries first; arguments as of `read_memory`."""
    program = _Program(parse("Module", module))
    buffers = _on_device(parse("BufferAssignment", assignment), other_memories)
    temporaries, always = _places(program, buffers)
    return (*temporaries, *always)


def read_elsewhere(assignment: bytes, other_memories: Mapping[int, str]) -> dict[str, int]:
    """The bytes in other memories than the device's, by name."""
    bytes_of: dict[str, int] = {}
    for allocation in parse("BufferAssignment", assignment).buffer_allocations:
        if allocation.color in other_memories and not allocation.is_thread_local:
            name = other_memories[allocation.color]
            bytes_of[name] = bytes_of.get(name, 0) + allocation.size
    return bytes_of


def read_sizes(assignment: bytes, other_memories: Mapping[int, str] = HOST_ONLY) -> BufferSizes:
    """Reads a serialised `BufferAssignmentProto`."""
    buffers = _on_device(parse("BufferAssignment", assignment), other_memories)
    allocations = buffers.buffer_allocations
    arguments = [
        allocation for allocation in allocations if allocation.is_entry_computation_parameter
    ]
    return BufferSizes(
        sum(allocation.size for allocation in arguments),
        sum(allocation.size for allocation in allocations if allocation.maybe_live_out),
        _allocated_bytes(buffers),
        sum(allocation.size for allocation in arguments if allocation.maybe_live_out),
    )


def _forwarded(instruction: Any, operands: Sequence[list[frozenset[int]]]) -> list[frozenset[int]]:
    """Per element of a forwarding instruction's result, the instructions that define it."""
    if instruction.opcode == "tuple":
        return [frozenset().union(*elements) for elements in operands]
    if instruction.opcode == "get-tuple-element" and len(operands[0]) > 1:
        return [operands[0][instruction.tuple_index]]
    return operands[0]


def _carried(module: Any) -> Iterator[tuple[int, int]]:
    """For each loop, the start and end values of its carries."""
    computations = {listed.id: listed for listed in module.computations}
    for computation in module.computations:
        for loop in computation.instructions:
            if loop.opcode == "while":
                body = computations[loop.called_computation_ids[0]]
                starts = (i.id for i in body.instructions if i.opcode == "parameter")
                yield from ((start, body.root_id) for start in (loop.id, *starts))


class _Program:
    """The instructions of a module by identity, and its flattened schedule."""

    def __init__(self, module: Any) -> None:
        self.instructions = {
            message.id: message
            for computation in module.computations
            for message in computation.instructions
        }
        self._carried = dict(_carried(module))
        self._sequences = {
            entry.key: list(entry.value.instruction_ids) for entry in module.schedule.sequences
        }
        self.order = list(self._flatten(module.entry_computation_id))
        self.position = {instruction: position for position, instruction in enumerate(self.order)}
        self.last_use = self._last_uses()

    def _flatten(self, computation: int) -> Iterator[int]:
        """A computation's instructions, each after those of the computations that it runs."""
        for identity in self._sequences.get(computation, ()):
            instruction = self.instructions[identity]
            if instruction.opcode in _RUNS_COMPUTATIONS:
                for called in instruction.called_computation_ids:
                    yield from self._flatten(called)
            yield identity

    def _last_uses(self) -> dict[int, int]:
        """For each instruction the last position at which its result is read."""
        last_use: dict[int, int] = {}
        parts: dict[int, list[frozenset[int]]] = {}
        for position, identity in enumerate(self.order):
            instruction = self.instructions[identity]
            operands = [
                parts.get(operand, [frozenset((operand,))]) for operand in instruction.operand_ids
            ]
            if instruction.opcode in _FORWARDS:
                parts[identity] = _forwarded(instruction, operands)
            for origin in frozenset().union(*(part for elements in operands for part in elements)):
                last_use[origin] = position
        return last_use

    def op_name(self, identity: int, index: tuple[int, ...], most_loops: int = 2) -> str:
        """The metadata of the instruction that made element `index` of a result. If XLA gave it no
        unit, it is that of the value that the instruction copies or carries from one iteration to
        the next."""
        own_name = self.instructions[identity].metadata.op_name
        for _ in range(_MOST_HOPS):
            instruction = self.instructions[identity]
            if scope_of(instruction.metadata.op_name) is not None:
                return instruction.metadata.op_name
            if most_loops and identity in self._carried:
                carried_name = self.op_name(self._carried[identity], index, most_loops - 1)
                if scope_of(carried_name) is not None:
                    return carried_name
            if instruction.opcode not in _CARRIES or not instruction.operand_ids:
                break
            operand = 0
            if instruction.opcode == "tuple":
                operand, index = (index[0], index[1:]) if index else (0, ())
            elif instruction.opcode == "get-tuple-element":
                index = (instruction.tuple_index, *index)
            identity = instruction.operand_ids[operand]
        return own_name

    def unit_at(self, position: int) -> int:
        """The unit of the instruction at a position, -1 if it has none."""
        scope = scope_of(self.instructions[self.order[position]].metadata.op_name)
        return -1 if scope is None else scope.unit


def _places(program: _Program, assignment: Any) -> tuple[list[LiveBuffer], list[LiveBuffer]]:
    """Temporaries with their lives, and the buffers of the whole step: arguments and results."""
    lives = _lives(program, assignment)
    defined = {
        buffer.id: (buffer.defined_at.instruction_id, tuple(buffer.defined_at.shape_index))
        for buffer in assignment.logical_buffers
    }
    temporaries, always = [], []
    for allocation in assignment.buffer_allocations:
        kind = _kind(allocation)
        if kind == "temporary":
            temporaries += _temporaries(program, allocation, defined, lives)
        elif kind is not None:
            always.append(_held_throughout(program, allocation, kind, defined))
    return temporaries, always


def _kind(allocation: Any) -> str | None:
    """The kind as in `LiveBuffer`; None for anything that is no buffer of the step."""
    if allocation.is_thread_local or allocation.is_constant:
        return None
    if allocation.is_entry_computation_parameter:
        return "argument"
    return "output" if allocation.maybe_live_out else "temporary"


def _allocated_bytes(assignment: Any) -> int:
    return sum(
        allocation.size
        for allocation in assignment.buffer_allocations
        if _kind(allocation) == "temporary"
    )


def _on_device(assignment: Any, other_memories: Mapping[int, str]) -> Any:
    """The assignment without the allocations in other memories; XLA numbers them by color."""
    allocations = [
        allocation
        for allocation in assignment.buffer_allocations
        if allocation.color not in other_memories
    ]
    del assignment.buffer_allocations[:]
    assignment.buffer_allocations.extend(allocations)
    return assignment


def _lives(program: _Program, assignment: Any) -> dict[int, tuple[int, int]]:
    """For each logical buffer its half-open range of positions."""
    names: dict[int, list[int]] = {
        logical.id: [logical.defined_at.instruction_id] for logical in assignment.logical_buffers
    }
    for alias in assignment.buffer_aliases:
        names[alias.source_buffer_id].append(alias.location.instruction_id)
    lives = {}
    for buffer, instructions in names.items():
        places = [
            program.position[instruction]
            for instruction in instructions
            if instruction in program.position
        ]
        if places:
            uses = [program.last_use.get(instruction, -1) for instruction in instructions]
            lives[buffer] = (
                program.position.get(instructions[0], min(places)),
                max(*places, *uses) + 1,
            )
    by_name = {
        program.instructions[instruction].name: position
        for instruction, position in program.position.items()
    }
    return lives | traced_lives(assignment, by_name)


def traced_lives(assignment: Any, position: Mapping[str, int]) -> dict[int, tuple[int, int]]:
    """For each logical buffer in the heap simulator's traces its half-open range of positions.
    XLA:GPU records traces, XLA:CPU does not.

    - `position`: the position of each instruction, by name.

    A trace lists, in the order of the schedule, when each buffer was allocated, when another one
    came to share its place, and when it was freed: after the instruction that last reads it. No
    instruction that allocates lies between these two. So a life ends at the latest at the position
    of the next allocation, and memory at the peak is exact.
    """
    lives: dict[int, tuple[int, int]] = {}
    for trace in assignment.heap_simulator_traces:
        lives.update(_traced_lives(trace.events, position))
    return lives


def _traced_lives(events: Any, position: Mapping[str, int]) -> dict[int, tuple[int, int]]:
    last = max(position.values(), default=0) + 1
    starts: dict[int, int] = {}
    freed: list[int] = []
    lives: dict[int, tuple[int, int]] = {}
    for event in events:
        if event.kind == _FREE:
            freed.append(event.buffer_id)
            continue
        start = position.get(event.instruction_name, 0)
        # A buffer that is shared in the instruction that reads it last is freed in its trace
        # before; it must not end before it began.
        lives.update(
            (buffer, (starts[buffer], max(start, starts[buffer] + 1)))
            for buffer in freed
            if buffer in starts
        )
        freed = []
        starts[event.buffer_id] = start
    lives.update((buffer, (starts[buffer], last)) for buffer in freed if buffer in starts)
    unfreed = starts.keys() - lives.keys()
    return lives | {buffer: (starts[buffer], last) for buffer in unfreed}


def _temporaries(
    program: _Program,
    allocation: Any,
    defined: Mapping[int, _Place],
    lives: Mapping[int, tuple[int, int]],
) -> list[LiveBuffer]:
    """The buffers of one allocation. Those that share a place at one time are one."""
    by_offset: dict[int, list[tuple[int, int, int, int]]] = {}
    for assigned in allocation.assigned:
        identity = assigned.logical_buffer_id
        if identity in lives:
            member = (*lives[identity], assigned.size, identity)
            by_offset.setdefault(assigned.offset, []).append(member)
    return [
        _buffer(program, defined[identity], size, "temporary", (start, end))
        for members in by_offset.values()
        for start, end, size, identity in _merged(sorted(members))
    ]


def _merged(members: Sequence[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Buffers without overlap: of those in one place at one time, the earlier one ends where the
    later one begins. The later one then holds the place for as long as any of them is alive."""
    cut: list[tuple[int, int, int, int]] = []
    for start, end, size, identity in members:
        if cut and start < cut[-1][1]:
            first, last, largest, name = cut.pop()
            if first < start:
                cut.append((first, start, largest, name))
            end, size = max(end, last), max(size, largest)
        cut.append((start, end, size, identity))
    return cut


def _held_throughout(
    program: _Program, allocation: Any, kind: str, defined: Mapping[int, _Place]
) -> LiveBuffer:
    is_argument = kind == "argument"
    places = [defined[assigned.logical_buffer_id] for assigned in allocation.assigned]
    places = [place for place in places if place[0] in program.instructions]
    opcodes = [program.instructions[identity].opcode for identity, _ in places]
    pairs = zip(places, opcodes, strict=True)
    candidates = [place for place, opcode in pairs if (opcode == "parameter") == is_argument]
    place = (candidates or places)[0 if is_argument else -1]
    argument = allocation.parameter_number if is_argument else None
    return _buffer(program, place, allocation.size, kind, (0, len(program.order)), argument)


def _buffer(
    program: _Program,
    place: _Place,
    size: int,
    kind: str,
    life: tuple[int, int],
    argument: int | None = None,
) -> LiveBuffer:
    instruction, op_name = program.instructions[place[0]], program.op_name(*place)
    return LiveBuffer(size, kind, instruction.name, instruction.opcode, op_name, *life, argument)


def unit_curve(memory: CompiledMemory, unit_count: int) -> np.ndarray:
    """For each unit the most bytes that the compiled program holds while it runs."""
    centres = _centres(memory, unit_count)
    ends = (centres[:-1] + centres[1:]) / 2
    times = np.searchsorted(ends, np.arange(len(memory.curve_bytes)), side="right")
    most_bytes = np.zeros(unit_count, dtype=np.int64)
    np.maximum.at(most_bytes, times, np.asarray(memory.curve_bytes, dtype=np.int64))
    return most_bytes


def held_curve(memory: CompiledMemory, unit_count: int) -> np.ndarray:
    """For each unit the most bytes that the program holds while its own instructions run, for
    people.

    Unlike in `unit_curve` a unit is placed where its instructions run, in any order. A unit without
    instructions, since XLA fused it into another one, shows the smaller figure of its neighbours.
    """
    held_bytes = np.zeros(unit_count, dtype=np.int64)
    units, curve = np.asarray(memory.units), np.asarray(memory.curve_bytes, dtype=np.int64)
    named = np.flatnonzero((units >= 0) & (units < unit_count))
    if not len(named):
        return held_bytes
    # An instruction without a unit belongs to the next one that has one.
    owners = named[np.minimum(np.searchsorted(named, np.arange(len(curve))), len(named) - 1)]
    np.maximum.at(held_bytes, units[owners], curve)
    shown = np.flatnonzero(held_bytes)
    places = np.searchsorted(shown, np.arange(unit_count))
    before = held_bytes[shown[np.maximum(places - 1, 0)]]
    after = held_bytes[shown[np.minimum(places, len(shown) - 1)]]
    return np.where(held_bytes == 0, np.minimum(before, after), held_bytes)


def _centres(memory: CompiledMemory, unit_count: int) -> np.ndarray:
    """For each unit the median position of its instructions, made to rise with the units. A unit
    without instructions has the position of the next one."""
    centres = np.full(unit_count, float(len(memory.curve_bytes)))
    units = np.asarray(memory.units)
    for unit in np.unique(units[units >= 0]):
        centres[unit] = np.median(np.flatnonzero(units == unit))
    return np.minimum.accumulate(centres[::-1])[::-1]


def excess(
    memory: CompiledMemory, predicted_bytes: Sequence[int], least_bytes: float = 0.0
) -> np.ndarray:
    """For each unit the compiled bytes beyond the predicted ones, at least 0. Units at which the
    compiled program holds less than `least_bytes` count as 0."""
    predicted = np.asarray(predicted_bytes, dtype=np.int64)
    compiled = unit_curve(memory, len(predicted))
    return np.where(compiled >= least_bytes, np.maximum(compiled - predicted, 0), 0)


def as_intervals(excess_bytes: np.ndarray) -> tuple[Interval, ...]:
    """Runs of equal excess as half-open intervals of unit times."""
    edges = np.flatnonzero(np.diff(excess_bytes)) + 1
    starts, ends = np.concatenate(([0], edges)), np.concatenate((edges, [len(excess_bytes)]))
    return tuple(
        Interval(int(start), int(end), int(excess_bytes[start]))
        for start, end in zip(starts, ends, strict=True)
        if excess_bytes[start] > 0
    )
