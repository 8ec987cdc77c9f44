"""What a program takes that `jax.jit` runs as it is, with the shardings that XLA gives it.

Behind a plan's barriers (`kiwi.emit.barriers`) each reader reshards a value for itself; without
them XLA reshards it once for all readers of a layout, and holds the copy from the first to the
last. What `jax.checkpoint` recomputes is told apart: it reads its inputs behind barriers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kiwi.hlo.program import Value
from kiwi.memory.timeline import Buffer, Timeline
from kiwi.mesh import TensorSharding
from kiwi.plans.estimate import Estimate
from kiwi.problem.build import PlanningProblem
from kiwi.problem.predicted_collectives import predicted_uses
from kiwi.problem.solved import Solved
from kiwi.solver.evaluate import evaluate, hidden_amount
from kiwi.solver.problem import Load


@dataclass(frozen=True)
class _Copy:
    """What is moved to another layout than the stored one, and the units of the step or of one
    loop's body that read it so, in order."""

    moved: Value
    stored: TensorSharding
    wanted: TensorSharding
    readers: tuple[int, ...]


def estimate_as_written(solved: Solved, planned: Estimate) -> Estimate:
    """Turns the estimate of a plan without recomputation into that of the program without fences.

    The problem fixes every value's sharding, see `kiwi.planners.xla`.
    """
    planning, copies = solved.problem, tuple(_copies(solved))
    saved = sum(seconds for seconds, _ in _saved(planning, copies))
    hidden = hidden_amount(_loads(solved, copies))
    own = (b for b in planned.buffers if b.kind != "copy")
    buffers = (*own, *_buffers(planning, copies), *_untied(solved))
    line = Timeline(buffers, planning.problem.horizon)
    return replace(
        planned,
        step_seconds=planned.step_seconds + planned.hidden_seconds - saved - hidden,
        hidden_seconds=hidden,
        resharding_seconds=planned.resharding_seconds - saved,
        peak_bytes=max(line.peak_bytes, planning.allocated_bytes(buffers, line.horizon)),
        peak_unit=line.peak_time,
        memory_bytes=line.curve_bytes,
        collective_uses=predicted_uses(solved, once_per_layout=True),
        buffers=buffers,
    )


def _copies(solved: Solved) -> Iterator[_Copy]:
    layouts = solved.layouts
    planning = solved.problem
    readers: dict[tuple[Value, TensorSharding, int | None], list[int]] = {}
    for unit, (strategy, _) in zip(solved.problem.units.units, solved.choices, strict=True):
        for (value, _), wanted in zip(unit.rule.reads, strategy.reads, strict=True):
            if layouts[value] != wanted:
                moved = planning.rules.moved_value(planning.units, unit, value)
                readers.setdefault((moved, wanted, unit.loop), []).append(unit.index)
    for (moved, wanted, _), found in readers.items():
        yield _Copy(moved, layouts[moved.index], wanted, tuple(dict.fromkeys(found)))


def _loads(solved: Solved, copies: Sequence[_Copy]) -> dict[tuple[int, int], float]:
    """By window and channel, without the copies that are not made again."""
    planning, restricted = solved.problem, solved.restricted.problem
    found = dict(evaluate(restricted, [0] * len(restricted.nodes)).loads)
    for _, loads in _saved(planning, copies):
        for load in loads:
            found[load.window, load.channel] -= float(load.amounts[0])
    return found


def _saved(
    planning: PlanningProblem, copies: Sequence[_Copy]
) -> Iterator[tuple[float, tuple[Load, ...]]]:
    """What each reader behind a copy's first one pays for resharding, and the loads of that."""
    for copy in copies:
        for reader in copy.readers[1:]:
            operand = planning.operand(planning.units.units[reader], copy.moved.index)
            seconds = operand.trips * operand.seconds_once([copy.stored], [copy.wanted])[0]
            yield float(seconds[0]), operand.overlap(seconds, 0 * seconds)


def _buffers(planning: PlanningProblem, copies: Sequence[_Copy]) -> Iterator[Buffer]:
    """Slices are left out: XLA takes them as it reads."""
    shape = planning.mesh.shape
    for copy in copies:
        if copy.wanted.shard_count(shape) <= copy.stored.shard_count(shape):
            first, last = copy.readers[0], copy.readers[-1]
            size = planning.copied_bytes(copy.moved, copy.wanted)
            yield Buffer(first, last + 1, size, "copy", first)


def _untied(solved: Solved) -> Iterator[Buffer]:
    """What a plan's fences keep from being made at the start of the step."""
    units, rules = solved.problem.units, solved.problem.rules
    for unit, (strategy, _) in zip(units.units, solved.choices, strict=True):
        for held in rules.held_without_barriers(units, unit, strategy.result_bytes):
            yield Buffer(held.start, held.end, held.bytes, "result", unit.index)
