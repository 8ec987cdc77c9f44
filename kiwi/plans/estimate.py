"""The predicted figures of a plan. The evaluator, which shares no code with the solvers, computes
the time.

The module also lists the operands of a solution that are moved to other layouts, and the copies
that are made again. Each reader of a value reshards the value for itself, unless it reads a copy
that an earlier reader keeps.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace

from kiwi.hlo.host_memory import LEAST_ELEMENTS, buffer_key
from kiwi.hlo.large_operators import reduces_late
from kiwi.hlo.program import Value
from kiwi.kernels.user_recomputation import units_computed_again
from kiwi.memory.loop_bodies import OperandRead
from kiwi.memory.timeline import Buffer, Timeline
from kiwi.mesh import TensorSharding
from kiwi.problem.build import PlanningProblem
from kiwi.problem.overlap import NETWORK
from kiwi.problem.predicted_collectives import predicted_uses, time_shares
from kiwi.problem.scheduled import Scheduled, again_seconds, scheduled
from kiwi.problem.solved import Solved
from kiwi.solver import Evaluation, evaluate
from kiwi.solver.evaluate import hidden_amount
from kiwi.solver.problem import Load
from kiwi.solver.schedule import Schedule
from kiwi.timings import timed
from kiwi.xla.read.collectives import AxisUse, CollectiveUse, by_kind


@dataclass(frozen=True)
class Estimate:
    """Predicted time and memory of one step on one device.

    - `step_seconds`: the sum of `compute_seconds`, `communication_seconds`, `resharding_seconds`
      and `recompute_seconds`, less `hidden_seconds`.
    - `compute_seconds`: the first computations.
    - `communication_seconds`: the operators' own collectives, and copies to the host and back.
    - `resharding_seconds`: the resharding between operators.
    - `recompute_seconds`: everything that is done a second time.
    - `hidden_seconds`: the communication behind computation (`kiwi.problem.overlap`).
    - `peak_bytes`: the memory that XLA's heap needs for the buffers (`kiwi.memory.heap`), a little
      more than the largest `memory_bytes`.
    - `peak_unit`: the unit with the largest `memory_bytes`.
    - `memory_bytes[u]`: the most bytes alive while unit u runs.
    - `collective_uses`: the collectives by kind and mesh axes, as in `CompiledProgram`.
    - `buffers`: all buffers, over points of time.
    - `times[u]`: the point of time of unit u at which `memory_bytes[u]` is alive. Empty if each
      unit's point is its own index.
    - `time_shares`: the fraction of the time by provenance
      (`kiwi.problem.predicted_collectives`); empty if unknown.
    - `host_peak_bytes`: the most bytes of host memory that the values of one device take.
    - `offload_seconds`: the part of `communication_seconds` that copies values to the host and
      back.
    - `hidden_offload_seconds`: the seconds that would stay hidden if the program waited for every
      collective.
    - `hidden_copies_seconds`: the part of `hidden_seconds` that would be lost if the program waited
      for repeated copies.
    - `hidden_sums_seconds`: the part that would be lost if it waited for reductions.
    - `sums_behind[u]`: the seconds for which the reductions of unit u run behind computation.
    """

    step_seconds: float
    compute_seconds: float
    communication_seconds: float
    resharding_seconds: float
    recompute_seconds: float
    peak_bytes: int
    peak_unit: int
    memory_bytes: tuple[int, ...]
    collective_uses: tuple[AxisUse, ...]
    buffers: tuple[Buffer, ...]
    times: tuple[int, ...] = ()
    time_shares: Mapping[str, float] = field(default_factory=dict)
    hidden_seconds: float = 0.0
    host_peak_bytes: int = 0
    offload_seconds: float = 0.0
    hidden_offload_seconds: float = 0.0
    hidden_copies_seconds: float = 0.0
    hidden_sums_seconds: float = 0.0
    sums_behind: tuple[float, ...] = ()

    @property
    def exposed_seconds(self) -> float:
        """The seconds of communication that the device waits for, without the transfers of
        recomputation."""
        return self.communication_seconds + self.resharding_seconds - self.hidden_seconds

    @property
    def without_overlap(self) -> "Estimate":
        """The estimate of a program that waits for all collectives. Copies to the host and back
        still overlap with computation."""
        hidden = min(self.hidden_seconds, self.hidden_offload_seconds)
        waits_seconds = self.hidden_seconds - hidden
        return self._waiting(waits_seconds, hidden_copies_seconds=0.0, hidden_sums_seconds=0.0)

    def hiding(self, sums_seconds: float, copies_seconds: float) -> "Estimate":
        """The estimate of a program that hides only `sums_seconds` of `hidden_sums_seconds` and
        `copies_seconds` of `hidden_copies_seconds`."""
        waits_seconds = self.hidden_sums_seconds - sums_seconds
        waits_seconds += self.hidden_copies_seconds - copies_seconds
        hidden = {"hidden_sums_seconds": sums_seconds, "hidden_copies_seconds": copies_seconds}
        return self._waiting(min(waits_seconds, self.hidden_seconds), **hidden)

    def _waiting(self, seconds: float, **hidden: float) -> "Estimate":
        hidden |= {"hidden_seconds": self.hidden_seconds - seconds}
        return replace(self, step_seconds=self.step_seconds + seconds, **hidden)

    @property
    def collectives(self) -> Mapping[str, CollectiveUse]:
        """The collectives by kind, over all axes."""
        return by_kind(self.collective_uses)

    def alive_at(self, unit: int) -> tuple[Buffer, ...]:
        """The buffers whose bytes add up to `memory_bytes[unit]`."""
        time = self.times[unit] if self.times else unit
        return tuple(buffer for buffer in self.buffers if buffer.start <= time < buffer.end)


def with_seconds_of(estimate: Estimate, priced: Estimate) -> Estimate:
    """Returns `estimate` with the seconds of `priced`, another estimate of the same decisions."""
    names = [
        estimate_field.name
        for estimate_field in fields(Estimate)
        if estimate_field.name.endswith("_seconds")
    ]
    seconds = {name: getattr(priced, name) for name in (*names, "sums_behind", "time_shares")}
    return replace(estimate, **seconds)


@timed("estimate")
def estimate_solution(solved: Solved) -> Estimate:
    """Returns the estimate of a solution, priced with `kiwi.solver.evaluate`."""
    chosen = solved.restricted
    evaluation = evaluate(chosen.problem, [0] * len(chosen.problem.nodes))
    order = Scheduled(Timeline(chosen.buffers, chosen.problem.horizon))
    return _estimate(solved, evaluation, evaluation.parts.get("recompute", 0.0), order)


@timed("estimate")
def estimate_schedule(solved: Solved, schedule: Schedule, resident_bytes: int = 0) -> Estimate:
    """Returns the estimate of any schedule of units, with the sizes and live ranges of the joint
    problem.

    The schedule of a solution gets the solution's own estimate, to the byte.

    - `solved`: the shardings, and the copies of operands that are kept. Its residencies count only
      if they offload: they determine the copies to the host.
    - `schedule`: a valid schedule of units, each computed at least once. The later steps of the
      units that `solved` offloads are fetches. The device waits for every fetch of a value except
      the first.
    - `resident_bytes`: memory held throughout the step in addition to the units' memory, such as
      the pointers of tuples.
    """
    choices = enumerate(solved.choices)
    fetched = frozenset(unit for unit, (_, residency) in choices if residency.fetch_at is not None)
    solved = replace(solved, schedule=schedule, fetched=fetched)
    chosen = solved.restricted
    evaluation = evaluate(chosen.problem, [0] * len(chosen.problem.nodes))
    pairs = zip(solved.runs, again_seconds(solved), strict=True)
    recompute_seconds = sum((runs - 1) * seconds for runs, seconds in pairs)
    recompute_seconds += _user_recompute_seconds(solved)
    estimate = _estimate(
        solved, evaluation, recompute_seconds, scheduled(chosen, schedule, fetched)
    )
    again = _further_fetch_seconds(solved, schedule)
    return replace(
        estimate,
        step_seconds=estimate.step_seconds + again,
        communication_seconds=estimate.communication_seconds + again,
        offload_seconds=estimate.offload_seconds + again,
        peak_bytes=estimate.peak_bytes + resident_bytes,
        memory_bytes=tuple(live_bytes + resident_bytes for live_bytes in estimate.memory_bytes),
    )


def _further_fetch_seconds(solved: Solved, schedule: Schedule) -> float:
    """Returns the seconds of the second and all later fetches of offloaded values."""
    runs, chosen = schedule.computations(), solved.restricted
    nodes = chosen.problem.nodes[len(chosen.sources) :]
    held = [
        node.host_usage[0] * max(0, runs[unit.unit] - 2)
        for unit, node in zip(chosen.unit_nodes, nodes, strict=False)  # The nodes of copies follow.
        if node.host_usage
    ]
    return float(solved.problem.seconds_to_host(held).sum())


def _estimate(
    solved: Solved, evaluation: Evaluation, recompute_seconds: float, found: Scheduled
) -> Estimate:
    line, parts, problem = found.timeline, evaluation.parts, solved.problem
    memory_bytes = tuple(line.curve_bytes[time] for time in found.times or range(line.horizon))
    loads = evaluation.loads
    other_loads = {key: load for key, load in loads.items() if key[1] != NETWORK}
    return Estimate(
        evaluation.cost + (recompute_seconds - parts.get("recompute", 0.0)),
        parts.get("compute", 0.0),
        parts.get("communication", 0.0),
        parts.get("resharding", 0.0),
        recompute_seconds,
        max(line.peak_bytes, problem.allocated_bytes(line.buffers, line.horizon)),
        memory_bytes.index(max(memory_bytes)),
        memory_bytes,
        predicted_uses(solved),
        line.buffers,
        found.times,
        time_shares(solved),
        evaluation.hidden,
        evaluation.host_peak_bytes + _spare_host_bytes(solved),
        _offload_seconds(solved),
        hidden_amount(other_loads),
        _hidden_copies_seconds(solved, evaluation),
        _hidden_sums_seconds(solved, evaluation),
        _sums_behind(solved),
    )


def _user_recompute_seconds(solved: Solved) -> float:
    """Returns the seconds of recomputation by the user's own checkpoints, which has units of its
    own."""
    again = units_computed_again(solved.problem.units)
    return sum(
        strategy.seconds for unit, (strategy, _) in enumerate(solved.choices) if unit in again
    )


def _hidden_copies_seconds(solved: Solved, evaluation: Evaluation) -> float:
    if not evaluation.hidden:
        return 0.0
    again = copies_again(solved.problem, copies_made(solved))
    loads = (load for _, loads_of_unit in again for load in loads_of_unit)
    return evaluation.hidden - hidden_without(evaluation.loads, loads)


def _hidden_sums_seconds(solved: Solved, evaluation: Evaluation) -> float:
    if not evaluation.hidden:
        return 0.0
    loads = (load for _, load in _loads_of_sums(solved))
    return evaluation.hidden - hidden_without(evaluation.loads, loads)


def _sums_behind(solved: Solved) -> tuple[float, ...]:
    seconds = {unit: float(load.amounts[0]) for unit, load in _loads_of_sums(solved)}
    return tuple(seconds.get(unit, 0.0) for unit in range(len(solved.runs))) if seconds else ()


def _loads_of_sums(solved: Solved) -> Iterator[tuple[int, Load]]:
    """Yields the units whose reductions are late, each with the loads of these reductions."""
    chosen = solved.restricted
    nodes = chosen.problem.nodes[len(chosen.sources) :]
    for unit, node in zip(chosen.unit_nodes, nodes, strict=False):  # The nodes of copies follow.
        if reduces_late(chosen.units, chosen.units.units[unit.unit]):
            yield from ((unit.unit, load) for load in node.loads if load.channel == NETWORK)


def _offload_seconds(solved: Solved) -> float:
    """Returns the seconds of copying offloaded values to the host and back."""
    held = [node.host_usage[0] for node in solved.restricted.problem.nodes if node.host_usage]
    return 2 * float(solved.problem.seconds_to_host(held).sum())


def _spare_host_bytes(solved: Solved) -> int:
    """Returns the bytes of host memory that no value needs. The compiler stacks equal offloaded
    values into one buffer with at least `LEAST_ELEMENTS` elements; fewer values leave elements
    unused."""
    if not solved.problem.facts.hoists_copies:
        return 0
    units, shape = solved.problem.units, solved.problem.mesh.shape
    sizes: dict[Hashable, list[int]] = {}
    for unit, (_, residency) in zip(units.units, solved.choices, strict=True):
        if residency.fetch_at is not None and unit.loop is None:
            (number,) = unit.outputs
            value, layout = units.graph.program.values[number], solved.layouts[number]
            key = buffer_key(value.shape, value.dtype, layout)
            sizes.setdefault(key, []).append(value.size_bytes // layout.shard_count(shape))
    return sum(
        max(0, LEAST_ELEMENTS - len(equal_sizes)) * equal_sizes[0] for equal_sizes in sizes.values()
    )


@dataclass(frozen=True)
class Copy:
    """A value that is moved from its stored layout to another one. `readers` are the reads of the
    value in that layout in the step or in one loop's body, in order, one for each unit."""

    moved: Value
    stored: TensorSharding
    wanted: TensorSharding
    readers: tuple[OperandRead, ...]


def copies_made(solved: Solved) -> Iterator[Copy]:
    """Yields the copies that first computations read, except copies that an earlier reader
    keeps."""
    layouts, planning = solved.layouts, solved.problem
    readers: dict[tuple[Value, TensorSharding, int | None], dict[int, OperandRead]] = {}
    for unit, (strategy, _) in zip(planning.units.units, solved.choices, strict=True):
        reads = zip(unit.rule.reads, strategy.reads, strict=True)
        for number, ((value, _), wanted) in enumerate(reads):
            read = OperandRead(unit.index, number)
            if layouts[value] != wanted and read not in solved.kept:
                moved = planning.kernels[unit.index].moved[number]
                readers.setdefault((moved, wanted, unit.loop), {}).setdefault(unit.index, read)
    for (moved, wanted, _), units in readers.items():
        yield Copy(moved, layouts[moved.index], wanted, tuple(units.values()))


def copies_again(
    planning: PlanningProblem, copies: Iterable[Copy]
) -> Iterator[tuple[float, tuple[Load, ...]]]:
    """Yields, for each reader of a copy after the first, the seconds of resharding that the reader
    pays for, and their loads."""
    for copy in copies:
        for reader in copy.readers[1:]:
            operand = planning.operand(planning.units.units[reader.unit], copy.moved.index)
            seconds = operand.trips * operand.seconds_once([copy.stored], [copy.wanted])[0]
            yield float(seconds[0]), operand.overlap(seconds, 0 * seconds)


def hidden_without(loads: Mapping[tuple[int, int], float], left_out: Iterable[Load]) -> float:
    """Returns the seconds that are hidden if some loads are left out. `loads` is by window and
    channel."""
    remaining = dict(loads)
    for load in left_out:
        remaining[load.window, load.channel] -= float(load.amounts[0])
    return hidden_amount(remaining)
