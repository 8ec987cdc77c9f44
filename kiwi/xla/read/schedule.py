"""The schedule of a compiled program: work, communication and loops, in order.

An asynchronous transfer begins at its start instruction and is awaited at its done instruction. On
TPUs there are also kernels that start a collective, compute beside it or await it (async collective
fusion). They identify the collective by its channel. A synchronous collective is awaited at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kiwi.xla.read.collectives import CollectiveReader, channel_of, device_pairs
from kiwi.xla.read.hlo_text import HOST_SPACE, Computation, Instruction, Module, known_trip_count
from kiwi.xla.read.name_scopes import scope_of
from kiwi.xla.read.work import NO_WORK, ModuleWork, Work, is_collective

HOST = "host"
"""The kind of a copy between host and device memory."""

TO_HOST, FROM_HOST = 1, -1
"""The directions of copies of the kind `HOST`."""

_START, _DONE = "AsyncCollectiveStart", "AsyncCollectiveDone"
"""The targets of XLA:TPU's custom calls that start and await a collective inside a fusion."""


@dataclass(frozen=True)
class Transfer:
    """One transfer between devices, or between device and host.

    - `key`: the name by which the transfer is awaited.
    - `kind`, `axes`, `bytes`: as in `AxisUse`. A copy between device and host has the kind `HOST`
      and no axes.
    - `direction`: 1 or -1 for a permutation that goes up or down its axes; `TO_HOST` or `FROM_HOST`
      for a copy; 0 for a transfer in both directions.
    """

    key: str
    kind: str
    axes: tuple[str, ...] | None
    bytes: int
    direction: int = 0


@dataclass(frozen=True)
class ScheduledWork:
    """One step of a schedule.

    - `work`: the computation of the step.
    - `unit`: the plan's unit; -1 if unknown.
    - `starts`: the transfers that begin before the work.
    - `carries`: the transfers that move beside the work. A transfer that is not under way yet
      begins and ends in the step.
    - `awaits`: the keys of the transfers that the step waits for at its end.
    - `bodies`: the indices in `Schedule.computations` of the loop bodies or branches that it runs.
    - `trips`: how often each of `bodies` runs.
    - `is_counted`: False for a loop whose trip count the program does not state.
    """

    work: Work = NO_WORK
    unit: int = -1
    starts: tuple[Transfer, ...] = ()
    carries: tuple[Transfer, ...] = ()
    awaits: tuple[str, ...] = ()
    bodies: tuple[int, ...] = ()
    trips: float = 1.0
    is_counted: bool = True


@dataclass(frozen=True)
class Schedule:
    """The steps of each computation that a program runs, in order. The last computation is the
    entry."""

    computations: tuple[tuple[ScheduledWork, ...], ...]


def read_schedule(module: Module, mesh_shape: Sequence[int], names: Sequence[str]) -> Schedule:
    """Returns the schedule of an optimised module.

    - `mesh_shape`, `names`: the shape and the axis names of the mesh whose devices the module
      names.
    """
    return _Reader(module, CollectiveReader(mesh_shape, names)).schedule()


def _units(computation: Computation) -> Mapping[str, int]:
    """Returns the plan's unit of each instruction, by the instruction's name.

    An instruction with a name scope belongs to the unit of the scope. When XLA expands an
    instruction, only the root of the expansion keeps the scope. An instruction without a scope
    belongs to the unit of its first reader, or else to the unit of an operand.
    """
    unit_of: dict[str, int] = {}
    for instruction in computation.instructions:
        scope = scope_of(instruction.attributes)
        if scope is not None:
            unit_of[instruction.name] = scope.unit
    read_for: dict[str, int] = {}
    for instruction in reversed(computation.instructions):
        unit = unit_of.get(instruction.name, read_for.get(instruction.name))
        if unit is not None:
            read_for.update(dict.fromkeys(instruction.operands, unit))
    for instruction in computation.instructions:
        if instruction.name in unit_of or instruction.opcode == "parameter":
            continue
        near = [unit_of[name] for name in instruction.operands if name in unit_of]
        unit = read_for.get(instruction.name, near[0] if near else None)
        if unit is not None:
            unit_of[instruction.name] = unit
    return unit_of


class _Reader:
    """Reads the schedule of a module, computation by computation."""

    def __init__(self, module: Module, read: CollectiveReader) -> None:
        self._module, self._read, self._work = module, read, ModuleWork(module)
        self._found: list[tuple[ScheduledWork, ...]] = []
        self._numbers: dict[str, int] = {}

    def schedule(self) -> Schedule:
        self._number(self._module.entry.name)
        return Schedule(tuple(self._found))

    def _number(self, name: str) -> int:
        """Returns the index of a computation in the schedule. The computations that it runs have
        smaller indices."""
        if name not in self._numbers:
            computation = self._module.computations[name]
            steps = tuple(self._steps(computation))
            self._numbers[name] = len(self._found)
            self._found.append(steps)
        return self._numbers[name]

    def _steps(self, computation: Computation) -> Iterator[ScheduledWork]:
        units = _units(computation)
        for instruction in computation.instructions:
            step = self._step(instruction, computation)
            if step != _NOTHING:
                yield replace(step, unit=units.get(instruction.name, -1))

    def _step(self, instruction: Instruction, computation: Computation) -> ScheduledWork:
        opcode = instruction.opcode
        if opcode in ("while", "conditional", "call"):
            return self._called(instruction, computation)
        if opcode.endswith("-done"):
            return ScheduledWork(awaits=instruction.operands[:1])
        if opcode.endswith(("-start", "-update")) or is_collective(instruction):
            return self._communicated(instruction, computation)
        work = self._work.of(instruction, computation)
        called = instruction.computation("calls")
        if called in self._module.computations:
            return self._fused(work, self._module.computations[called])
        return _NOTHING if work.is_scalar else ScheduledWork(work)

    def _called(self, instruction: Instruction, computation: Computation) -> ScheduledWork:
        if instruction.opcode == "while":
            body = instruction.computation("body")
            trips = known_trip_count(self._module, computation, instruction)
            bodies = (self._number(body),)
            return ScheduledWork(bodies=bodies, trips=trips or 1, is_counted=trips is not None)
        names = instruction.branches or (instruction.computation("to_apply"),)
        branch_numbers = tuple(
            self._number(name) for name in names if name in self._module.computations
        )
        return ScheduledWork(bodies=branch_numbers, trips=1 / max(1, len(branch_numbers)))

    def _communicated(self, instruction: Instruction, computation: Computation) -> ScheduledWork:
        opcode, name = instruction.opcode, instruction.name
        if opcode == "copy-start":
            return ScheduledWork(starts=tuple(_host_copy(instruction)))
        if opcode.endswith("-update"):
            return _NOTHING
        called = self._module.computations.get(instruction.computation("calls"))
        if called is not None:  # An `async-start`, or the start of a called computation.
            transfers = [*self._transfers(called), *_host_slices(called)]
            return ScheduledWork(starts=tuple(replace(moved, key=name) for moved in transfers))
        use = self._read(instruction, computation.name)
        if use is None:
            return _NOTHING
        transfer = Transfer(name, use.kind, use.axes, use.bytes, _direction(instruction))
        if opcode.endswith("-start"):
            return ScheduledWork(starts=(transfer,))
        return ScheduledWork(carries=(transfer,))

    def _fused(self, work: Work, inner: Computation) -> ScheduledWork:
        """Returns the step of a fusion, with the collectives that it starts, carries and awaits."""
        carried = {transfer.key: transfer for transfer in self._transfers(inner)}
        if not carried:
            return _NOTHING if work.is_scalar else ScheduledWork(work)
        by_name = inner.by_name
        started, awaited = (
            {
                _key(by_name[name])
                for call in inner.instructions
                if call.opcode == "custom-call" and target in call.attributes
                for name in call.operands
                if name in by_name and is_collective(by_name[name])
            }
            for target in (_START, _DONE)
        )
        return ScheduledWork(
            work,
            starts=tuple(transfer for key, transfer in carried.items() if key in started),
            carries=tuple(
                transfer for key, transfer in carried.items() if key not in started | awaited
            ),
            awaits=tuple(sorted(awaited)),
        )

    def _transfers(self, computation: Computation) -> Iterator[Transfer]:
        for instruction in computation.instructions:
            use = self._read(instruction, computation.name)
            if use is not None:
                yield Transfer(_key(instruction), use.kind, use.axes, use.bytes)


_NOTHING = ScheduledWork()


def _key(instruction: Instruction) -> str:
    """Returns the key of a collective: its channel, or its name if it has no channel."""
    channel = channel_of(instruction)
    return instruction.name if channel is None else f"channel {channel}"


def _direction(instruction: Instruction) -> int:
    """Returns the direction in which most devices of a permutation send: 1 to higher device
    numbers, -1 to lower ones, 0 if both are equally many or the instruction lists no pairs."""
    pairs = device_pairs(instruction.attributes) or ()
    up = sum(1 if target > source else -1 for source, target in pairs)
    return (up > 0) - (up < 0)


def _host_copy(instruction: Instruction) -> Iterator[Transfer]:
    """Yields the transfer of a `copy-start` from or to host memory; nothing for a copy between
    memories of the device."""
    spaces = [array.space for array in instruction.arrays[:2]]
    if HOST_SPACE in spaces:
        direction = TO_HOST if spaces[0] == HOST_SPACE else FROM_HOST
        yield Transfer(instruction.name, HOST, (), instruction.arrays[0].bytes, direction)


def _host_slices(computation: Computation) -> Iterator[Transfer]:
    """Yields the transfers of a computation that copy slices or whole values from or to host
    memory."""
    for instruction in computation.instructions:
        name, operands = instruction.name, instruction.operands
        if instruction.opcode not in ("dynamic-slice", "dynamic-update-slice", "copy"):
            continue
        read, written = (computation.by_name.get(operands[0]), instruction)
        if any(array.space == HOST_SPACE for array in written.arrays):
            moved = written if instruction.opcode == "copy" else computation.by_name[operands[1]]
            yield Transfer(name, HOST, (), moved.bytes, TO_HOST)
        elif read is not None and any(array.space == HOST_SPACE for array in read.arrays):
            yield Transfer(name, HOST, (), written.bytes, FROM_HOST)
