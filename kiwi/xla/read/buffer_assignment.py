"""The memory of a compiled program over time, read from XLA's buffer assignment.

A position is an index into the flattened schedule of the module: the instructions of the
computations that a `while`, `call` or `conditional` runs stand before that instruction. A buffer
lives from the instruction that defines it through the last instruction that reads it. Tuples,
barriers and bitcasts are further names of the same buffer, which XLA lists as aliases. Buffers that
share memory at the same time count once: an update in place and its operand, or a donated argument
and the result that takes it over.

`excess` is the memory **beyond the prediction**, which becomes fixed memory of the problem. Name
scopes align XLA's schedule with the plan's: a unit runs at the median position of its instructions,
but no later than any later unit. The excess of a unit is the compiled memory at its time less the
predicted memory, and at least 0.
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
"""Opcodes of instructions whose result is the buffer of an operand."""

_CARRIES = _FORWARDS | {"copy", "copy-start", "copy-done"}
"""Opcodes of instructions whose result has the value of an operand."""

HOST_ONLY: Mapping[int, str] = {HOST_SPACE: "host"}
"""The names of memories other than the device's, by color, if host memory is the only one."""

_MOST_HOPS = 16
"""The number of instructions that `_Program.op_name` follows towards the origin of a value. Beyond
it the value keeps the metadata of its own instruction."""

_FREE = 1
"""The kind of a trace event that frees a buffer."""

_RUNS_COMPUTATIONS = frozenset({"while", "call", "conditional", "async-start"})
"""Opcodes of instructions that run other computations."""


_Place = tuple[int, tuple[int, ...]]
"""The id of an instruction, and the index of an element of its result."""


@dataclass(frozen=True)
class LiveBuffer:
    """One buffer of a compiled program, on one device.

    - `bytes`: the size of the buffer.
    - `kind`: "argument", "output" or "temporary".
    - `instruction`, `opcode`: the name and opcode of the instruction that defines the buffer.
    - `op_name`: the metadata of the instruction that computes the value.
    - `start`, `end`: the half-open range of positions at which the buffer is held.
    - `argument`: the position of the flat argument; None for other kinds.
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
        """The name scope of the computation that defines the buffer; None if the metadata names
        none."""
        return scope_of(self.op_name)


@dataclass(frozen=True)
class CompiledMemory:
    """The memory over the schedule of a compiled program, on one device.

    - `curve_bytes[p]`: the bytes of arguments, results and live temporaries while the instruction
      at position p runs.
    - `units[p]`: the unit that the instruction at position p belongs to; -1 if unknown.
    - `peak_position`: the first position with the most bytes.
    - `at_peak`: the buffers that are live at the peak, largest first.
    - `fragmentation_bytes`: the bytes allocated for temporaries, less the bytes of the temporaries
      that are live at the peak.
    """

    curve_bytes: tuple[int, ...]
    units: tuple[int, ...]
    peak_position: int
    at_peak: tuple[LiveBuffer, ...]
    fragmentation_bytes: int


@dataclass(frozen=True)
class BufferSizes:
    """The bytes that a program allocates on one device, named as in `Compiled.memory_analysis()`.

    `alias_bytes` are the bytes of buffers that are both an argument and an output. They count in
    `argument_bytes` and in `output_bytes`.
    """

    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    alias_bytes: int


def read_memory(
    module: bytes, assignment: bytes, other_memories: Mapping[int, str] = HOST_ONLY
) -> CompiledMemory:
    """Returns the memory over the schedule.

    - `module`: a serialised `HloModuleProto`.
    - `assignment`: the serialised `BufferAssignmentProto` of the module.
    - `other_memories`: the colors of allocations to leave out, with names.
    """
    program = _Program(parse("Module", module))
    buffers = _on_device(parse("BufferAssignment", assignment), other_memories)
    temporaries, held_throughout = _places(program, buffers)
    lives = (Interval(buffer.start, buffer.end, buffer.bytes) for buffer in temporaries)
    curve = curve_bytes(lives, len(program.order)) + sum(buffer.bytes for buffer in held_throughout)
    peak = int(np.argmax(curve)) if len(curve) else 0
    alive = [buffer for buffer in temporaries if buffer.start <= peak < buffer.end]
    allocated = _allocated_bytes(buffers)
    return CompiledMemory(
        tuple(int(held_bytes) for held_bytes in curve),
        tuple(program.unit_at(position) for position in range(len(program.order))),
        peak,
        tuple(
            sorted(
                [*alive, *held_throughout], key=lambda buffer: (-buffer.bytes, buffer.instruction)
            )
        ),
        allocated - sum(buffer.bytes for buffer in alive),
    )


def read_buffers(
    module: bytes, assignment: bytes, other_memories: Mapping[int, str] = HOST_ONLY
) -> tuple[LiveBuffer, ...]:
    """Returns all buffers of one device, temporaries first; parameters as of `read_memory`."""
    program = _Program(parse("Module", module))
    buffers = _on_device(parse("BufferAssignment", assignment), other_memories)
    temporaries, held_throughout = _places(program, buffers)
    return (*temporaries, *held_throughout)


def read_elsewhere(assignment: bytes, other_memories: Mapping[int, str]) -> dict[str, int]:
    """Returns the bytes that a program allocates in `other_memories`, by the name of the memory.

    - `assignment`: a serialised `BufferAssignmentProto`.
    """
    bytes_by_name: dict[str, int] = {}
    for allocation in parse("BufferAssignment", assignment).buffer_allocations:
        if allocation.color in other_memories and not allocation.is_thread_local:
            name = other_memories[allocation.color]
            bytes_by_name[name] = bytes_by_name.get(name, 0) + allocation.size
    return bytes_by_name


def read_sizes(assignment: bytes, other_memories: Mapping[int, str] = HOST_ONLY) -> BufferSizes:
    """Returns the bytes that a program allocates in device memory; parameters as of
    `read_memory`."""
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
    """Returns, for each element of a forwarding instruction's result, the ids of the instructions
    that define its buffer. `operands`: the same for each operand."""
    if instruction.opcode == "tuple":
        return [frozenset().union(*elements) for elements in operands]
    if instruction.opcode == "get-tuple-element" and len(operands[0]) > 1:
        return [operands[0][instruction.tuple_index]]
    return operands[0]


def _carried(module: Any) -> Iterator[tuple[int, int]]:
    """Yields pairs of instruction ids for each `while`: the loop, and each parameter of its body,
    paired with the root of the body, which yields the carried values."""
    computations = {listed.id: listed for listed in module.computations}
    for computation in module.computations:
        for loop in computation.instructions:
            if loop.opcode == "while":
                body = computations[loop.called_computation_ids[0]]
                starts = (
                    parameter.id
                    for parameter in body.instructions
                    if parameter.opcode == "parameter"
                )
                yield from ((start, body.root_id) for start in (loop.id, *starts))


class _Program:
    """A module's instructions by id, and its flattened schedule.

    - `order`: the ids of the instructions by position.
    - `position`: the position of each instruction, by id.
    - `last_use`: the last position at which each instruction's result is read, by id.
    """

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
        """Yields the ids of a computation's instructions, each after the instructions of the
        computations that it runs."""
        for identity in self._sequences.get(computation, ()):
            instruction = self.instructions[identity]
            if instruction.opcode in _RUNS_COMPUTATIONS:
                for called in instruction.called_computation_ids:
                    yield from self._flatten(called)
            yield identity

    def _last_uses(self) -> dict[int, int]:
        """Returns, by id of an instruction, the last position at which its result is read, also
        under other names."""
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
        """Returns the `op_name` of the instruction that computes element `index` of a result.

        If the metadata of instruction `identity` names no unit, the search follows the value
        through copies and tuples, and through up to `most_loops` loops that carry it. If no
        instruction on the way names a unit, the result is the `op_name` of `identity`.
        """
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
        """Returns the unit of the instruction at a position; -1 if it has none."""
        scope = scope_of(self.instructions[self.order[position]].metadata.op_name)
        return -1 if scope is None else scope.unit


def _places(program: _Program, assignment: Any) -> tuple[list[LiveBuffer], list[LiveBuffer]]:
    """Returns the temporaries, and the buffers that are held throughout the step: arguments and
    results."""
    lives = _lives(program, assignment)
    defined = {
        buffer.id: (buffer.defined_at.instruction_id, tuple(buffer.defined_at.shape_index))
        for buffer in assignment.logical_buffers
    }
    temporaries, held_throughout = [], []
    for allocation in assignment.buffer_allocations:
        kind = _kind(allocation)
        if kind == "temporary":
            temporaries += _temporaries(program, allocation, defined, lives)
        elif kind is not None:
            held_throughout.append(_held_throughout(program, allocation, kind, defined))
    return temporaries, held_throughout


def _kind(allocation: Any) -> str | None:
    """Returns the kind of an allocation, as in `LiveBuffer`; None for constants and thread-local
    allocations."""
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
    """Removes the allocations in other memories from the assignment, and returns it."""
    allocations = [
        allocation
        for allocation in assignment.buffer_allocations
        if allocation.color not in other_memories
    ]
    del assignment.buffer_allocations[:]
    assignment.buffer_allocations.extend(allocations)
    return assignment


def _lives(program: _Program, assignment: Any) -> dict[int, tuple[int, int]]:
    """Returns, by id of a logical buffer, the half-open range of positions at which it lives.
    Traces of the heap take precedence over the uses of the buffer."""
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
    """Returns, by id of each logical buffer in the heap simulator's traces, the half-open range of
    positions at which it lives. The result is empty for a compiler that records no traces.

    - `position`: the position of each instruction, by name.

    A trace lists, in the order of the schedule, when each buffer is allocated, when it begins to
    share the place of another buffer, and when it is freed, after its last reader. A life ends here
    at the first allocation after the buffer is freed. The heap does not grow between its last
    reader and that allocation, so that the memory at the peak is exact.
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
        # If an instruction shares the place of a buffer that it reads last, the trace frees the
        # buffer first. The buffer still lives for at least one position.
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
    """Returns the buffers of one allocation. Buffers that share a place at the same time are merged
    into one."""
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
    """Returns the buffers of one place without overlap in time.

    If two buffers overlap, the earlier one ends where the later one begins. The later one then
    holds the place until both are dead, with the larger of the two sizes.

    - `members`: start, end, bytes and id of each buffer, in order.
    """
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
    """Returns the buffer of an argument or output, which is held throughout the step. An argument
    is named after its parameter, an output after the last other instruction that defines it."""
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
    """Returns, for each unit, the most bytes that the compiled program holds while the unit runs.
    The shape is (units,), the dtype int64.

    Each position belongs to the unit with the nearest centre (`_centres`).
    """
    centres = _centres(memory, unit_count)
    ends = (centres[:-1] + centres[1:]) / 2
    times = np.searchsorted(ends, np.arange(len(memory.curve_bytes)), side="right")
    most_bytes = np.zeros(unit_count, dtype=np.int64)
    np.maximum.at(most_bytes, times, np.asarray(memory.curve_bytes, dtype=np.int64))
    return most_bytes


def held_curve(memory: CompiledMemory, unit_count: int) -> np.ndarray:
    """Returns, for each unit, the most bytes that the program holds while the unit's instructions
    run. The shape is (units,), the dtype int64. Reports show this curve.

    Unlike in `unit_curve`, the order of the units does not matter. A unit without instructions,
    because XLA fused it into another unit, has the smaller figure of its two neighbours.
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
    """Returns, for each unit, the median position of its instructions, but no later than that of
    any later unit. A unit without instructions has the position of the next unit."""
    centres = np.full(unit_count, float(len(memory.curve_bytes)))
    units = np.asarray(memory.units)
    for unit in np.unique(units[units >= 0]):
        centres[unit] = np.median(np.flatnonzero(units == unit))
    return np.minimum.accumulate(centres[::-1])[::-1]


def excess(
    memory: CompiledMemory, predicted_bytes: Sequence[int], least_bytes: float = 0.0
) -> np.ndarray:
    """Returns, for each unit, the compiled bytes beyond the predicted bytes, at least 0.

    - `predicted_bytes`: the predicted bytes while each unit runs.
    - `least_bytes`: the excess is 0 for units at which the compiled program holds fewer bytes.
    """
    predicted = np.asarray(predicted_bytes, dtype=np.int64)
    compiled = unit_curve(memory, len(predicted))
    return np.where(compiled >= least_bytes, np.maximum(compiled - predicted, 0), 0)


def as_intervals(excess_bytes: np.ndarray) -> tuple[Interval, ...]:
    """Returns each run of units with the same positive excess as a half-open interval of units."""
    edges = np.flatnonzero(np.diff(excess_bytes)) + 1
    starts, ends = np.concatenate(([0], edges)), np.concatenate((edges, [len(excess_bytes)]))
    return tuple(
        Interval(int(start), int(end), int(excess_bytes[start]))
        for start, end in zip(starts, ends, strict=True)
        if excess_bytes[start] > 0
    )
