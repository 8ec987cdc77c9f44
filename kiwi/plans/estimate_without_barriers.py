"""The estimate of a program that `jax.jit` runs as it is, with the shardings that XLA gives it.

Behind a plan's barriers (`kiwi.emit.barriers`), each reader reshards a value for itself. Without
barriers XLA reshards the value once for all readers of a layout, and holds the copy from the first
reader to the last. Recomputation by `jax.checkpoint` is an exception: it reads its inputs behind
barriers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kiwi.memory.timeline import Buffer, Timeline
from kiwi.plans.estimate import Copy, Estimate, copies_again, copies_made, hidden_without
from kiwi.problem.build import PlanningProblem
from kiwi.problem.predicted_collectives import predicted_uses
from kiwi.problem.solved import Solved
from kiwi.solver.evaluate import evaluate


def estimate_as_written(solved: Solved, planned: Estimate) -> Estimate:
    """Returns the estimate of the program without barriers, given `planned`, the estimate of a plan
    without recomputation. The problem fixes every value's sharding (`kiwi.planners.xla`)."""
    planning, copies = solved.problem, tuple(copies_made(solved))
    again, restricted = list(copies_again(planning, copies)), solved.restricted.problem
    saved = sum(seconds for seconds, _ in again)
    loads = evaluate(restricted, [0] * len(restricted.nodes)).loads
    hidden = hidden_without(loads, (load for _, loads_of_unit in again for load in loads_of_unit))
    own_buffers = (buffer for buffer in planned.buffers if buffer.kind != "copy")
    buffers = (*own_buffers, *_buffers(planning, copies), *_untied(solved))
    line = Timeline(buffers, planning.problem.horizon)
    return replace(
        planned,
        step_seconds=planned.step_seconds + planned.hidden_seconds - saved - hidden,
        hidden_seconds=hidden,
        hidden_copies_seconds=0.0,
        resharding_seconds=planned.resharding_seconds - saved,
        peak_bytes=max(line.peak_bytes, planning.allocated_bytes(buffers, line.horizon)),
        peak_unit=line.peak_time,
        memory_bytes=line.curve_bytes,
        collective_uses=predicted_uses(solved, once_per_layout=True),
        buffers=buffers,
    )


def _buffers(planning: PlanningProblem, copies: Sequence[Copy]) -> Iterator[Buffer]:
    """Yields the buffers of copies. Slices have none: XLA fuses them into their readers."""
    shape = planning.mesh.shape
    for copy in copies:
        if copy.wanted.shard_count(shape) <= copy.stored.shard_count(shape):
            first_reader, last_reader = copy.readers[0].unit, copy.readers[-1].unit
            size = planning.copied_bytes(copy.moved, copy.wanted)
            yield Buffer(first_reader, last_reader + 1, size, "copy", first_reader)


def _untied(solved: Solved) -> Iterator[Buffer]:
    """Yields the buffers of values that XLA computes at the start of the step without barriers."""
    kernels = solved.problem.kernels.kernels
    for kernel, (strategy, _) in zip(kernels, solved.choices, strict=True):
        for early in kernel.held_early_without_barriers:
            held = early.interval(strategy.result_bytes)
            yield Buffer(held.start, held.end, held.bytes, "result", kernel.unit.index)
