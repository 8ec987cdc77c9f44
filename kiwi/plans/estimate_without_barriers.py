"""What a program takes without a barrier at every step.

**A plan with the barriers that it needs** (`Execution.tied_steps`). XLA:GPU fuses a map into all of
its readers, which compute it again: it has no buffer if what it reads is live until then anyway. In
an MLP and a GPT on (2, 4) (jax 0.10.2, H100) these are the tanh of each GELU: 64 of 321 and of 829
MiB. XLA:TPU fuses maps into matmuls as well.

**A program that `jax.jit` runs as it is**, with the shardings that XLA gives it. Behind a plan's
barriers (`kiwi.emit.barriers`) each reader reshards a value for itself; without them XLA reshards
it once for all readers of a layout, and holds the copy from the first to the last of them. What
`jax.checkpoint` recomputes is told apart: it reads its inputs behind barriers of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kiwi.emit.execution import Execution
from kiwi.hlo.fusion import is_map
from kiwi.hlo.in_place import is_of_library
from kiwi.hlo.units import Unit
from kiwi.memory.heap import allocated_bytes
from kiwi.memory.timeline import Buffer, Timeline
from kiwi.mesh import TensorSharding
from kiwi.plans.estimate import Estimate
from kiwi.problem.build import PlanningProblem
from kiwi.problem.predicted_collectives import predicted_uses
from kiwi.problem.solved import Solved


def estimate_with_needed_barriers(planned: Estimate, execution: Execution) -> Estimate:
    """The estimate of a plan with fewer barriers; `planned` is with a barrier at every step."""
    buffers = unfused_buffers(planned.buffers, execution)
    horizon = max((b.end for b in planned.buffers), default=1)
    curve = Timeline(buffers, horizon).curve_bytes
    in_time_order = execution.compiler.rules.places_in_time_order
    before, after = (
        allocated_bytes(each, horizon, execution.units, in_time_order=in_time_order)
        for each in (planned.buffers, buffers)
    )
    memory = tuple(curve[t] for t in planned.times or range(len(planned.memory_bytes)))
    return replace(
        planned,
        peak_bytes=planned.peak_bytes - before + after,
        peak_unit=memory.index(max(memory)),
        memory_bytes=memory,
        buffers=buffers,
    )


def unfused_buffers(buffers: tuple[Buffer, ...], execution: Execution) -> tuple[Buffer, ...]:
    """The buffers without those of maps that their readers compute again."""
    if execution.tied_steps is None or not execution.compiler.rules.fuses_maps_into_readers:
        return buffers
    producer = execution.units.producer
    lives: dict[tuple[str, int], list[Buffer]] = {}
    for each in buffers:
        lives.setdefault((each.kind, each.index), []).append(each)

    def is_live(value: int, during: Buffer) -> bool:
        owner = ("result", producer[value]) if value in producer else ("argument", value)
        return any(b.start <= during.start and during.end <= b.end for b in lives.get(owner, ()))

    def is_fused(buffer: Buffer) -> bool:
        if buffer.kind != "result" or buffer.end - buffer.start < 2:
            return False
        unit = execution.units.units[buffer.index]
        return _may_fuse(execution, unit) and all(is_live(v, buffer) for v in unit.reads)

    left = tuple(buffer for buffer in buffers if not is_fused(buffer))
    return tuple(_with_shared_operands(tuple(_with_epilogues(left, execution)), execution))


def _with_shared_operands(buffers: Sequence[Buffer], execution: Execution) -> Iterator[Buffer]:
    """The buffers, with what two units compute apart (`Rules.shared_operand`) held from the first
    to the second instead, and the parts of sums (`Rules.parts_of_sum`) instead of these."""
    units, rules = execution.units, execution.compiler.rules
    shared = {u.index: rules.shared_operand(units, u) for u in units.units}
    lives = {b.index: b for b in reversed(buffers) if b.kind == "result"}
    apart: set[Buffer] = set()
    for later, earlier in shared.items():
        if earlier is None or later not in lives or earlier not in lives:
            continue
        size, start = lives[later].bytes, lives[earlier].start
        end = lives[later].start + 1
        apart |= {
            Buffer(start, start + 1, size, "result", earlier),
            Buffer(end - 1, end, size, "result", later),
        }
        yield Buffer(start, end, size, "result", later)
    for buffer in buffers:
        if buffer not in apart:
            is_held = buffer.kind == "result" and buffer.end - buffer.start > 1
            parts = rules.parts_of_sum(units, units.units[buffer.index]) if is_held else 1
            yield replace(buffer, bytes=parts * buffer.bytes)


def _with_epilogues(buffers: Sequence[Buffer], execution: Execution) -> Iterator[Buffer]:
    """The buffers without those of matmuls that the only map which reads them is computed with, at
    the time of the matmul."""
    epilogues = {u.index: _epilogue(execution, u) for u in execution.units.units}
    matmul = {reader: unit for unit, reader in epilogues.items() if reader is not None}
    started = {b.index: b.start for b in buffers if b.kind == "result"}
    for buffer in buffers:
        if buffer.kind != "result":
            yield buffer
        elif epilogues[buffer.index] is None:
            start = started.get(matmul.get(buffer.index, -1), buffer.start)
            yield replace(buffer, start=min(start, buffer.start))


def _epilogue(execution: Execution, unit: Unit) -> int | None:
    """The only reader of a matmul, if that is a map of the same shape."""
    units = execution.units
    if not execution.compiler.rules.fuses_matmuls_into_maps or len(unit.outputs) != 1:
        return None
    if not is_of_library(units.graph, unit) or unit.index in execution.recomputed:
        return None
    readers = [use.reader for use in units.uses[unit.index]]
    if len(readers) != 1 or readers[0] is None:
        return None
    reader = units.units[readers[0]]
    if not _is_single_map(execution, reader) or not units.only_maps(reader, unit.outputs[0]):
        return None
    values = units.graph.program.values
    same = values[reader.outputs[0]].shape == values[unit.outputs[0]].shape
    return reader.index if same else None


def _may_fuse(execution: Execution, unit: Unit) -> bool:
    """Whether a unit is a map that runs once, and which all readers can compute again."""
    units, graph = execution.units, execution.units.graph
    if not _is_single_map(execution, unit):
        return False
    value = unit.outputs[0]
    readers = [units.units[u.reader] for u in units.uses[unit.index] if u.reader is not None]
    if value in graph.program.result_values or len(readers) < len(units.uses[unit.index]):
        return False
    unfusing = execution.compiler.rules.computes_apart_from_maps
    return not any(graph.opcodes[reader.root] & unfusing for reader in readers) and all(
        wanted == execution.layouts[value]
        for reader in readers
        for (read, _), wanted in zip(reader.rule.reads, execution.reads[reader.index], strict=True)
        if read == value
    )


def _is_single_map(execution: Execution, unit: Unit) -> bool:
    """Whether a unit computes one map, and once."""
    units, graph = execution.units, execution.units.graph
    if unit.index in execution.recomputed or units.border(unit) is not None:
        return False
    return len(unit.outputs) == 1 and all(is_map(graph, index) for index in unit.equations)


@dataclass(frozen=True)
class _Copy:
    """A value in another layout than the stored one, and the units of the step or of one loop's
    body that read it so, in order."""

    value: int
    stored: TensorSharding
    wanted: TensorSharding
    readers: tuple[int, ...]


def estimate_as_written(solved: Solved, planned: Estimate) -> Estimate:
    """Turns the estimate of a plan without recomputation into that of the program without fences.

    The problem fixes every value's sharding, see `kiwi.planners.xla`.
    """
    planning, copies = solved.problem, tuple(_copies(solved))
    saved = sum((len(c.readers) - 1) * _seconds(planning, c) for c in copies)
    own = (b for b in planned.buffers if b.kind != "copy")
    buffers = (*own, *_buffers(planning, copies), *_untied(solved))
    line = Timeline(buffers, planning.problem.horizon)
    return replace(
        planned,
        step_seconds=planned.step_seconds - saved,
        resharding_seconds=planned.resharding_seconds - saved,
        peak_bytes=max(line.peak_bytes, planning.allocated_bytes(buffers, line.horizon)),
        peak_unit=line.peak_time,
        memory_bytes=line.curve_bytes,
        collective_uses=predicted_uses(solved, once_per_layout=True),
        buffers=buffers,
    )


def _copies(solved: Solved) -> Iterator[_Copy]:
    layouts = solved.layouts
    readers: dict[tuple[int, TensorSharding, int | None], list[int]] = {}
    for unit, (strategy, _) in zip(solved.problem.units.units, solved.choices, strict=True):
        for (value, _), wanted in zip(unit.rule.reads, strategy.reads, strict=True):
            if layouts[value] != wanted:
                readers.setdefault((value, wanted, unit.loop), []).append(unit.index)
    for (value, wanted, _), units in readers.items():
        yield _Copy(value, layouts[value], wanted, tuple(dict.fromkeys(units)))


def _seconds(planning: PlanningProblem, copy: _Copy) -> float:
    """Of making the copy once, in every iteration of the loop that reads it."""
    table = planning.resharding_table(copy.value)
    trips = planning.units.operand_trips(planning.units.units[copy.readers[0]])
    return trips * float(table.seconds_matrix([copy.stored], [copy.wanted])[0, 0])


def _buffers(planning: PlanningProblem, copies: Sequence[_Copy]) -> Iterator[Buffer]:
    """Slices are left out: XLA takes them as it reads."""
    shape = planning.mesh.shape
    for copy in copies:
        if copy.wanted.shard_count(shape) <= copy.stored.shard_count(shape):
            first, last = copy.readers[0], copy.readers[-1]
            size = planning.local_bytes(copy.value, copy.wanted)
            yield Buffer(first, last + 1, size, "copy", first)


def _untied(solved: Solved) -> Iterator[Buffer]:
    """What a plan's fences keep from being made at the start of the step."""
    units, rules = solved.problem.units, solved.problem.rules
    for unit, (strategy, _) in zip(units.units, solved.choices, strict=True):
        for held in rules.held_without_barriers(units, unit, strategy.result_bytes):
            yield Buffer(held.start, held.end, held.bytes, "result", unit.index)
