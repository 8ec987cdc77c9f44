"""The collectives of a plan, the collectives that the compiled program has beyond the plan, and the
provenance of the predicted time.
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
"""A kind of collective along some axes counts as unforeseen if its bytes exceed the plan's by more
than this fraction of all planned bytes."""

_Layouts = dict[int, TensorSharding]
_Found = tuple[str, tuple[int, ...], int, float]


def predicted_uses(solved: Solved, *, once_per_layout: bool = False) -> tuple[AxisUse, ...]:
    """Returns the collectives of a solution, by kind and axes: of its strategies, of resharding
    between units, and of resharding results.

    `once_per_layout`: whether a value is resharded to a layout only once for all its readers in the
    step, or in a loop's body.
    """
    names = solved.problem.mesh.axis_names
    moves = predicted_moves(solved, once_per_layout=once_per_layout, known=True)
    return axis_uses(
        AxisUse(
            kind, tuple(names[axis] for axis in sorted(axes)), round(times), round(size * times)
        )
        for kind, axes, size, times in moves
        if kind in KINDS and axes
    )


def predicted_moves(
    solved: Solved, *, once_per_layout: bool = False, known: bool = False
) -> Iterator[_Found]:
    """Yields the kind, the axes, the bytes and the number of times of each move, local slices
    included. `once_per_layout`: as in `predicted_uses`. `known`: whether to count only the trips
    that XLA knows."""
    yield from _of_units(solved, once_per_layout, known)
    yield from _of_results(solved.problem, solved.layouts, known)


def _of_units(solved: Solved, once_per_layout: bool, known: bool) -> Iterator[_Found]:
    """Yields the moves of strategies and of resharding operands, as `predicted_moves` does."""
    program = solved.problem.units.graph.program
    planning, layouts, keys = solved.problem, solved.layouts, set()
    for unit, (strategy, _) in zip(planning.units.units, solved.choices, strict=True):
        runs = solved.runs[unit.index]
        trips = program.known_trips(unit.loop) if known else planning.units.trips(unit)
        times = trips * runs
        for move in strategy.collectives:
            yield move.kind, move.axes, move.bytes, times * move.repeats
        pairs = zip(unit.rule.reads, strategy.reads, strict=True)
        for read, ((value, _), wanted) in enumerate(pairs):
            moved = planning.kernels[unit.index].moved[read]
            key = (value, moved.dtype, wanted, unit.loop)
            is_there = once_per_layout and key in keys
            is_kept = (
                OperandRead(unit.index, read, again) in solved.kept for again in (False, True)
            )
            copies = runs - sum(is_kept)
            if copies and not is_there:
                copies *= planning.units.operand_trips(unit, known=known)
                table = planning.resharding_table(value, unit)
                yield from _resharding(table, layouts[value], wanted, copies)
            keys.add(key)


def _of_results(planning: PlanningProblem, layouts: _Layouts, known: bool) -> Iterator[_Found]:
    """Yields the moves of results: to the layouts that the caller fixed, to the layouts of the
    arguments that they replace, and from the end of an iteration to the layout of its start."""
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
    """Returns the collectives of the compiled program beyond the plan, by kind and axes, largest
    first. Excesses up to `SLACK` of all planned bytes are left out."""
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
    """Returns the fraction of the seconds of computation, communication and resharding that has
    each `Provenance`. The fractions add up to 1."""
    seconds = dict.fromkeys((kind.value for kind in Provenance), 0.0)
    for provenance, amount in _amounts(solved):
        seconds[provenance.value] += amount
    total = sum(seconds.values())
    return {name: amount / total for name, amount in seconds.items() if amount > 0}


def describe(shares: Mapping[str, float]) -> str:
    """Returns a line such as "81% measured, 19% analytic"; "" without shares."""
    order = (provenance.value for provenance in Provenance)
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
