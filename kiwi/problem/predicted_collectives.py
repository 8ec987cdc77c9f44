"""The collectives of a plan, the compiled program's collectives beyond them, and the provenance of
the predicted time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from kiwi.memory.loop_bodies import OperandRead
from kiwi.mesh import KINDS, SLICE, Provenance, ReshardingTable, TensorSharding, collective
from kiwi.mesh.moves import slice_price
from kiwi.problem.build import PlanningProblem
from kiwi.problem.solved import Solved
from kiwi.xla.read.collectives import AxisUse, axis_uses

SLACK = 0.01
"""Up to this share of all planned bytes, a kind of collective may exceed the plan along its axes.
"""

_Layouts = dict[int, TensorSharding]
_Found = tuple[str, tuple[int, ...], int, float]


def predicted_uses(solved: Solved, *, once_per_layout: bool = False) -> tuple[AxisUse, ...]:
    """The collectives of strategies, of resharding between units, and of bringing results in place.

    `once_per_layout`: a value is brought into another layout once for all its readers in the step,
    or in a loop's body.
    """
    names = solved.problem.mesh.axis_names
    moves = predicted_moves(solved, once_per_layout=once_per_layout, known=True)
    return axis_uses(
        AxisUse(kind, tuple(names[a] for a in sorted(axes)), round(times), round(size * times))
        for kind, axes, size, times in moves
        if kind in KINDS and axes
    )


def predicted_moves(
    solved: Solved, *, once_per_layout: bool = False, known: bool = False
) -> Iterator[_Found]:
    """Kind, axes, bytes and times of all moves, local slices included. `known`: the times that XLA
    knows of."""
    yield from _of_units(solved, once_per_layout, known)
    yield from _of_results(solved.problem, solved.layouts, known)


def _of_units(solved: Solved, once_per_layout: bool, known: bool) -> Iterator[_Found]:
    """Kind, axes, bytes, times."""
    program = solved.problem.units.graph.program
    planning, layouts, seen = solved.problem, solved.layouts, set()
    for unit, (strategy, _) in zip(planning.units.units, solved.choices, strict=True):
        runs = solved.runs[unit.index]
        trips = program.known_trips(unit.loop) if known else planning.units.trips(unit)
        times = trips * runs
        for move in strategy.collectives:
            yield move.kind, move.axes, move.bytes, times
        pairs = zip(unit.rule.reads, strategy.reads, strict=True)
        for read, ((value, _), wanted) in enumerate(pairs):
            moved = planning.kernels[unit.index].moved[read]
            key = (value, moved.dtype, wanted, unit.loop)
            is_there = once_per_layout and key in seen
            kept = (OperandRead(unit.index, read, again) in solved.kept for again in (False, True))
            made = runs - sum(kept)
            if made and not is_there:
                made *= planning.units.operand_trips(unit, known=known)
                table = planning.resharding_table(value, unit)
                yield from _resharding(table, layouts[value], wanted, made)
            seen.add(key)


def _of_results(planning: PlanningProblem, layouts: _Layouts, known: bool) -> Iterator[_Found]:
    """Moves of results to the layouts that the caller fixed, or to those of the arguments that they
    replace; and from the end of an iteration to the layout of its start."""
    program, carried = planning.units.graph.program, planning.fixed.carried
    for position, layout in planning.fixed.results.items():
        value = program.results[position]
        if isinstance(value, int) and value in layouts and position not in carried:
            table = planning.resharding_table(value)
            yield from _resharding(table, layouts[value], layout, 1)
    for start, value, trips in planning.carried(known=known):
        table = planning.resharding_table(value)
        yield from _resharding(table, layouts[value], layouts[start], trips)


def _resharding(
    table: ReshardingTable, source: TensorSharding, target: TensorSharding, times: float
) -> Iterator[_Found]:
    for step in table.path(source, target):
        yield step.kind, step.axes, step.bytes, times


def unforeseen(predicted: Sequence[AxisUse], compiled: Sequence[AxisUse]) -> tuple[AxisUse, ...]:
    """Collectives of the compiled program beyond the plan, by kind and axes, largest first.
    Excesses below `SLACK` of all planned bytes are left out."""
    planned = {(use.kind, use.axes): use for use in predicted}
    least = SLACK * sum(use.bytes for use in planned.values())
    excess = []
    for use in compiled:
        known = planned.get((use.kind, use.axes), replace(use, count=0, bytes=0))
        count, size = max(use.count - known.count, 0), use.bytes - known.bytes
        if size > least:
            excess.append(replace(use, count=count, bytes=size))
    return axis_uses(excess)


def time_shares(solved: Solved) -> Mapping[str, float]:
    """The shares of computing, communication and resharding seconds by `Provenance`; they add up to
    1."""
    seconds = dict.fromkeys((p.value for p in Provenance), 0.0)
    for provenance, amount in _amounts(solved):
        seconds[provenance.value] += amount
    total = sum(seconds.values())
    return {name: amount / total for name, amount in seconds.items() if amount > 0}


def describe(shares: Mapping[str, float]) -> str:
    """A line such as "81% measured, 19% analytic"; empty without shares."""
    order = (p.value for p in Provenance)
    return ", ".join(f"{shares[name]:.0%} {name}" for name in order if shares.get(name))


def _amounts(solved: Solved) -> Iterator[tuple[Provenance, float]]:
    mesh = solved.problem.mesh
    for (strategy, _), times in zip(solved.choices, solved.runs, strict=True):
        yield strategy.compute_provenance, times * strategy.compute_seconds
    for kind, axes, size_bytes, times in predicted_moves(solved):
        if kind in KINDS and axes:
            price = collective(kind, mesh, axes, size_bytes)
            yield price.provenance, times * price.seconds
        elif kind == SLICE:
            cut = slice_price(mesh, size_bytes)
            yield cut.provenance, times * cut.seconds
