"""Residency of a unit's results: kept until their last use, dropped and recomputed, or offloaded.

Times are unit indices. A *late* reader is one after the forward pass. A forward unit has these
options:

1. *keep(end)*: computed once, alive until `end`. `end` is the last reader's time, or a later one at
   which a consumer may be recomputed (KIWI, Eq. 10, as one option per `h_i`).
2. *recompute(at, end)*: alive until the last forward reader, computed again just before the unit at
   time `at` runs, and alive from then until `end`. `at` is the unit's own first late reader (KIWI,
   Eq. 5), or that of a consumer recomputed with it: the chains that KIWI's Eq. 9 forbids.
3. *offload(at, end)*, if host memory may be used: alive as in 2, but copied to the host after its
   computation and fetched from there at `at`. A fetch reads no device value, and units recomputed
   at `at` or later may read the result. `at` is the unit's own first late reader, or the earliest
   time at which a consumer may be recomputed.

All other units have the only option keep(last reader). A unit outside of a loop that runs again for
a reader in the loop runs before the loop. In addition, all units are offered the residency that
they have if the bodies of loops are rematerialised as a whole (`rematerialised_bodies`).

A rule may decide what is recomputed instead, before anything is sharded. Every unit then has one
option. With R the units that the rule recomputes, and H(u) the time at which u of R runs again,

1. H(u) is the earliest of u's own first reader after the forward pass and of H(v) of its readers v
   in R: as late as possible, and once only. A unit of a loop's body runs again in the body of the
   loop that reads it; a unit outside of that loop runs before it.
2. A unit outside R is kept until its last reader, or until the last H(v) of its readers in R.
3. A unit that nothing reads after the forward pass, directly or through R, does not run again.
"""

from bisect import bisect
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace

from kiwi.hlo.graph import Phase
from kiwi.hlo.host_memory import FETCH
from kiwi.hlo.loops import CARRY, LoopKind
from kiwi.hlo.repeated_layers import repeated_layers
from kiwi.hlo.units import Unit, UnitGraph

RESIDENCIES = ("keep", "recompute", "offload")

MAX_TIMES = 4
"""The number of recomputation times that a unit is offered: its own, then those of its nearest
consumers. More of them make the problem larger, and gain less than the gap."""


@dataclass(frozen=True, order=True)
class Residency:
    """One option. `recompute_at` is set for *recompute*, `fetch_at` for *offload*; otherwise they
    are None. `end` is inclusive."""

    recompute_at: int | None
    end: int
    fetch_at: int | None = None

    @property
    def recomputes(self) -> bool:
        """Whether the unit runs a second time."""
        return self.recompute_at is not None

    @property
    def again_at(self) -> int | None:
        """The time from which the results exist a second time; None if they are kept."""
        return self.fetch_at if self.recompute_at is None else self.recompute_at

    @property
    def name(self) -> str:
        """One of `RESIDENCIES`."""
        return "recompute" if self.recomputes else "keep" if self.fetch_at is None else "offload"

    def available_at(self, time: int) -> bool:
        """Whether a consumer recomputed at `time`, after the forward pass, can read the result."""
        start = -1 if self.again_at is None else self.again_at
        return start <= time <= self.end


@dataclass(frozen=True)
class UnitResidency:
    """A unit's options. `last_forward_use` ends the first life of a result that is recomputed or
    fetched. `last_use` is the time of the last reader, or the step's end for a result of the
    function."""

    last_forward_use: int
    last_use: int
    options: tuple[Residency, ...]


def residencies(
    units: UnitGraph,
    *,
    recompute: bool = True,
    least_offloaded_bytes: Callable[[Unit], float] | None = None,
) -> tuple[UnitResidency, ...]:
    """The options of every unit, in order. Without `recompute` no unit is recomputed. Results of at
    least so many bytes, over all iterations, may be offloaded; by default none."""
    may = [recompute and may_be_recomputed(units, unit) for unit in units.units]
    own = [_first_late(units, unit) for unit in units.units]
    times = [_times(units, index, may, own) for index in range(len(may))]
    every = tuple(_unit_residency(units, unit, times) for unit in units.units)
    if recompute:
        every = with_offered(every, [each.options for each in rematerialised_bodies(units)])
    if least_offloaded_bytes is None:
        return every
    return tuple(
        replace(each, options=(*each.options, *_offloaded(units, unit, own, every)))
        if may_be_offloaded(units, unit, least_offloaded_bytes(unit))
        else each
        for unit, each in zip(units.units, every, strict=True)
    )


def rematerialised_bodies(units: UnitGraph) -> tuple[UnitResidency, ...]:
    """The only residency of every unit, in order, if each iteration of the backward pass begins
    with its forward body. Only values that other iterations or loops read are kept, as with
    `jax.checkpoint` around each layer of a scan."""
    return rewritten(units, forward_bodies(units))


def forward_bodies(units: UnitGraph) -> set[int]:
    """The units of loops that belong to the forward pass as a whole."""
    phases: dict[int | None, set[Phase]] = {}
    for unit in units.units:
        phases.setdefault(unit.loop, set()).add(unit.phase)
    return {
        unit.index
        for unit in units.units
        if unit.loop is not None and phases[unit.loop] == {Phase.FORWARD}
    }


def may_be_offloaded(units: UnitGraph, unit: Unit, least_bytes: float) -> bool:
    """Whether a unit's result may go to the host. It has to be one array of the forward pass,
    outside of loops or in a scan that is in no other loop, and nothing may read it after the scan
    in the forward pass."""
    program, loop = units.graph.program, unit.loop
    if unit.phase is not Phase.FORWARD or len(unit.outputs) != 1 or is_result(units, unit):
        return False
    border, (value,) = units.border(unit), unit.outputs
    info = program.values[value]
    is_scan = loop is not None and program.loops[loop].kind is LoopKind.SCAN
    is_flat = loop is None or (is_scan and program.loops[loop].parent is None)
    if not is_flat or border not in (None, CARRY) or info.is_extended or units.is_sliced(unit):
        return False
    if value in program.host_values or program.is_large_constant(unit.root):
        return False
    if program.equations[unit.root].name == FETCH:
        return False  # It is there.
    length = 1 if loop is None else program.loops[loop].length
    early = (use.time for use in units.uses[unit.index] if not use.is_late)
    behind = len(units.units) if loop is None else units.spans[loop][1]
    return info.size_bytes * length >= least_bytes and all(time < behind for time in early)


def _offloaded(
    units: UnitGraph, unit: Unit, own: Sequence[int | None], found: Sequence[UnitResidency]
) -> Iterator[Residency]:
    """The offloading options: fetched for the unit's own first late reader, or for the first
    consumer that is recomputed."""
    uses = units.uses[unit.index]
    late = [use.time for use in uses if use.is_late]
    readers = {use.reader for use in uses if use.reader is not None}
    again = (r.recompute_at for reader in readers for r in found[reader].options)
    consumers = {units.entry(unit.loop, time) for time in again if time is not None}
    offered: dict[Residency, None] = {}
    first = own[unit.index]
    if first is not None:
        offered[Residency(None, max(late), first)] = None
    if consumers:
        starts = consumers if first is None else {*consumers, first}
        offered[Residency(None, max([*late, *consumers]), min(starts))] = None
    yield from (r for r in offered if _is_of_space(units, unit, r))


def _is_of_space(units: UnitGraph, unit: Unit, residency: Residency) -> bool:
    """Whether a value in a loop is read by another loop over the same iterations, and fetched there
    for all of its readers."""
    program = units.graph.program
    if unit.loop is None:
        return True
    assert residency.fetch_at is not None
    times = residency.fetch_at, residency.end
    first, last = (program.loops_around(units.units[time].loop) for time in times)
    if not first or not last or first[0] != last[0]:
        return False
    reader = program.loops[first[0]]
    return reader.index != unit.loop and reader.space == program.loops[unit.loop].space


def with_offered(
    lifetimes: Sequence[UnitResidency], offered: Sequence[Sequence[Residency]]
) -> tuple[UnitResidency, ...]:
    """The options with further ones for each unit. `offered` is empty, or one list per unit."""
    if not offered:
        return tuple(lifetimes)
    return tuple(
        replace(own, options=tuple(dict.fromkeys((*own.options, *more))))
        for own, more in zip(lifetimes, offered, strict=True)
    )


def with_life(units: UnitGraph, unit: Unit, options: Sequence[Residency]) -> UnitResidency:
    """The options with the life of the unit's result. A result of the function has one life."""
    if is_result(units, unit):
        step_end = len(units.units) - 1
        return UnitResidency(step_end, step_end, (Residency(None, step_end),))
    uses = units.uses[unit.index]
    forward = max((u.time for u in uses if not u.is_late), default=unit.index)
    return UnitResidency(forward, last_use(units, unit), tuple(dict.fromkeys(options)))


def last_use(units: UnitGraph, unit: Unit) -> int:
    """The time of the last reader of the unit's result; the unit's own time if there is none."""
    return max((u.time for u in units.uses[unit.index]), default=unit.index)


def may_be_recomputed(units: UnitGraph, unit: Unit) -> bool:
    """Whether a unit may be recomputed. A stack of which loops take elements may not: it would
    exist at two times."""
    return unit.may_recompute and not is_result(units, unit) and not units.is_sliced(unit)


def is_result(units: UnitGraph, unit: Unit) -> bool:
    """Whether it yields a result of the function."""
    return any(output in units.graph.program.result_values for output in unit.outputs)


def _first_late(units: UnitGraph, unit: Unit) -> int | None:
    """The time at which a dropped unit has to run again for its own readers."""
    late = (u.time for u in units.uses[unit.index] if u.is_late)
    return min((units.entry(unit.loop, time) for time in late), default=None)


def _times(
    units: UnitGraph, unit: int, may_recompute: Sequence[bool], own: Sequence[int | None]
) -> tuple[int, ...]:
    """The times at which a unit may be recomputed: its own, then its nearest consumers'."""
    if not may_recompute[unit]:
        return ()
    latest = own[unit]
    reached: dict[int, None] = {} if latest is None else {latest: None}
    seen, wave = {unit}, [unit]
    while wave and len(reached) < MAX_TIMES:
        wave = [
            r
            for r in dict.fromkeys(u.reader for index in wave for u in units.uses[index])
            if r is not None and r not in seen and may_recompute[r]
        ]
        seen.update(wave)
        times = (own[r] for r in wave)
        entries = (units.entry(units.units[unit].loop, t) for t in times if t is not None)
        reached.update((t, None) for t in entries if latest is None or t < latest)
    return tuple(list(reached)[:MAX_TIMES])


def _unit_residency(
    units: UnitGraph, unit: Unit, times: Sequence[tuple[int, ...]]
) -> UnitResidency:
    uses, last = units.uses[unit.index], last_use(units, unit)
    is_read_late = any(u.is_late for u in uses)
    consumer_times = sorted({t for u in uses if u.reader is not None for t in times[u.reader]})
    options = [Residency(None, last)]
    options += [Residency(None, end) for end in consumer_times if end > last]
    if is_read_late or consumer_times:
        for at in times[unit.index]:
            base = last if is_read_late else at
            options += [Residency(at, end) for end in (base, *consumer_times) if end >= base]
    return with_life(units, unit, options)


def rewritten(units: UnitGraph, recomputed: Set[int]) -> tuple[UnitResidency, ...]:
    """The only residency of every unit, in order. `recomputed` are indices of units.

    Units are kept whatever the rule says if they cannot be recomputed, are results of the function,
    or lie after the forward pass.
    """
    again = _times_of_rule(units, {u for u in recomputed if may_run_again(units, units.units[u])})
    return tuple(_residency_by_rule(units, unit, again) for unit in units.units)


def may_run_again(units: UnitGraph, unit: Unit) -> bool:
    """Whether a rule may make the unit run a second time."""
    return unit.phase is Phase.FORWARD and may_be_recomputed(units, unit)


def _times_of_rule(units: UnitGraph, recomputed: Set[int]) -> dict[int, int]:
    """H(u) of the units that run again by a rule. Readers come after their operands."""
    time_of: dict[int, int] = {}
    for unit in reversed(units.units):
        if unit.index not in recomputed:
            continue
        uses = units.uses[unit.index]
        times = [u.time for u in uses if u.is_late]
        times += [time_of[u.reader] for u in uses if u.reader in time_of]
        if times:
            time_of[unit.index] = min(units.entry(unit.loop, time) for time in times)
    return time_of


def _residency_by_rule(units: UnitGraph, unit: Unit, again: dict[int, int]) -> UnitResidency:
    uses, at = units.uses[unit.index], again.get(unit.index)
    lasts = [u.time for u in uses if u.is_late]
    lasts += [again[u.reader] for u in uses if u.reader in again]
    # A recomputed value is held again only for late readers and those that run again.
    end = max(lasts if at is not None else [last_use(units, unit), *lasts])
    return with_life(units, unit, [Residency(at, end)])


def rematerialised_layers(units: UnitGraph) -> tuple[UnitResidency, ...]:
    """The only residency of every unit, in order, as with `jax.checkpoint` around each layer, in
    scans and unrolled programs. Of the repeated units, a layer begins with the one for which the
    fewest bytes pass from layer to layer."""
    bodies = forward_bodies(units)
    return rewritten(units, bodies | _inside_of_layers(units, bodies))


def _inside_of_layers(units: UnitGraph, bodies: set[int]) -> set[int]:
    """The forward units outside of these loops whose results no other layer reads; none if no
    layers repeat."""
    forward = {u.index for u in units.units if u.phase is Phase.FORWARD} - bodies
    # Of each unit of the first layer the counterparts in all layers, in order.
    starts = (sorted(c) for c in repeated_layers(units).units.chains() if c[0] in forward)
    passing = ((_passing(units, each), each) for each in starts)
    best = min(passing, key=lambda each: (_bytes(units, each[0]), each[1]), default=None)
    return set() if best is None else forward - best[0]


def _passing(units: UnitGraph, starts: Sequence[int]) -> set[int]:
    """The forward units whose results are read in another layer than their own."""
    layer = [bisect(starts, unit.index) for unit in units.units]
    return {
        unit.index
        for unit in units.units
        if unit.phase is Phase.FORWARD
        for output in unit.outputs
        for reader in units.readers.get(output, ())
        if units.units[reader].phase is Phase.FORWARD and layer[reader] != layer[unit.index]
    }


def _bytes(units: UnitGraph, passing: set[int]) -> int:
    values = units.graph.program.values
    return sum(values[output].size_bytes for u in passing for output in units.units[u].outputs)
