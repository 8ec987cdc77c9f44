"""The residency of a unit's results: kept until their last use, dropped and recomputed, or
offloaded.

Times are unit indices. A *late* reader is a reader after the forward pass. A forward unit has these
options:

1. *keep(end)*: the result is computed once, and alive until `end`. `end` is the time of the last
   reader, or a later time at which a consumer may be recomputed (KIWI, Eq. 10, as one option per
   `h_i`).
2. *recompute(at, end)*: the result is alive until the last forward reader, computed again just
   before the unit at time `at` runs, and alive from then until `end`. `at` is the time of the
   unit's own first late reader (KIWI, Eq. 5), or of the first late reader of a consumer that is
   recomputed with it. KIWI's Eq. 9 forbids the latter chains.
3. *offload(at, end)*, if host memory may be used: the result is alive as in 2, but copied to the
   host after its computation and fetched from there at `at`. A fetch reads no device value, and
   units recomputed at `at` or later may read the result. `at` is the time of the unit's own first
   late reader, or the earliest time at which a consumer may be recomputed.

All other units have the only option keep(last reader). A unit outside of a loop that runs again for
a reader in the loop runs before the loop. In addition, every unit is offered the residency that it
has if the bodies of loops are rematerialised as a whole (`rematerialised_bodies`).

Instead, a rule may choose the recomputed units before anything is sharded. Every unit then has one
option. Let R be the units that the rule recomputes, and H(u) the time at which u in R runs again.

1. H(u) is the earlier of the time of u's first late reader and the earliest H(v) of its readers v
   in R: u runs again as late as possible, and once only. A unit of a loop's body runs again in the
   body of the loop that reads it. A unit outside of that loop runs before it.
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
"""The names of the kinds of residency."""

MAX_TIMES = 4
"""The largest number of recomputation times that a unit is offered: its own, then the times of its
nearest consumers. Further consumers are left out: their times would enlarge the problem and gain
little."""


@dataclass(frozen=True, order=True)
class Residency:
    """One option of a unit.

    - `recompute_at`: the time of the second computation (*recompute*), or None.
    - `end`: the last time at which the result is alive.
    - `fetch_at`: the time of the fetch (*offload*), or None.
    """

    recompute_at: int | None
    end: int
    fetch_at: int | None = None

    @property
    def recomputes(self) -> bool:
        """Whether the unit runs a second time."""
        return self.recompute_at is not None

    @property
    def again_at(self) -> int | None:
        """The time from which the results exist a second time; None for *keep*."""
        return self.fetch_at if self.recompute_at is None else self.recompute_at

    @property
    def name(self) -> str:
        """One of `RESIDENCIES`."""
        return "recompute" if self.recomputes else "keep" if self.fetch_at is None else "offload"

    def available_at(self, time: int) -> bool:
        """Whether a consumer that is recomputed at `time`, after the forward pass, can read the
        result."""
        start = -1 if self.again_at is None else self.again_at
        return start <= time <= self.end


@dataclass(frozen=True)
class UnitResidency:
    """A unit's options.

    - `last_forward_use`: the time at which the first life of a result that is recomputed or fetched
      ends.
    - `last_use`: the time of the last reader; the end of the step for a result of the function.
    """

    last_forward_use: int
    last_use: int
    options: tuple[Residency, ...]


def residencies(
    units: UnitGraph,
    *,
    recompute: bool = True,
    least_offloaded_bytes: Callable[[Unit], float] | None = None,
) -> tuple[UnitResidency, ...]:
    """Returns the options of every unit, in order.

    - `recompute`: whether units may be recomputed.
    - `least_offloaded_bytes`: the size of a unit's result, over all iterations, from which on it
      may be offloaded. By default no result may be.
    """
    may_recompute = [recompute and may_be_recomputed(units, unit) for unit in units.units]
    first_late = [_first_late(units, unit) for unit in units.units]
    times = [_times(units, index, may_recompute, first_late) for index in range(len(may_recompute))]
    lifetimes = tuple(_unit_residency(units, unit, times) for unit in units.units)
    if recompute:
        lifetimes = with_offered(
            lifetimes, [residency.options for residency in rematerialised_bodies(units)]
        )
    if least_offloaded_bytes is None:
        return lifetimes
    return tuple(
        replace(
            residency, options=(*residency.options, *_offloaded(units, unit, first_late, lifetimes))
        )
        if may_be_offloaded(units, unit, least_offloaded_bytes(unit))
        else residency
        for unit, residency in zip(units.units, lifetimes, strict=True)
    )


def rematerialised_bodies(units: UnitGraph) -> tuple[UnitResidency, ...]:
    """Returns the only residency of every unit, in order, if each iteration of the backward pass
    recomputes its forward body. Only values that other iterations or loops read are kept, as with
    `jax.checkpoint` around each layer of a scan."""
    return rewritten(units, forward_bodies(units))


def forward_bodies(units: UnitGraph) -> set[int]:
    """Returns the units of loops all of whose units belong to the forward pass."""
    phases: dict[int | None, set[Phase]] = {}
    for unit in units.units:
        phases.setdefault(unit.loop, set()).add(unit.phase)
    return {
        unit.index
        for unit in units.units
        if unit.loop is not None and phases[unit.loop] == {Phase.FORWARD}
    }


def may_be_offloaded(units: UnitGraph, unit: Unit, least_bytes: float) -> bool:
    """Whether a unit's result may be offloaded to the host.

    The result must be one array of the forward pass with at least `least_bytes` over all
    iterations. It must be outside of loops, or in a scan that is in no other loop and after which
    nothing in the forward pass reads it.
    """
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
        return False  # The host has the value already.
    length = 1 if loop is None else program.loops[loop].length
    early = (use.time for use in units.uses[unit.index] if not use.is_late)
    behind = len(units.units) if loop is None else units.spans[loop][1]
    return info.size_bytes * length >= least_bytes and all(time < behind for time in early)


def _offloaded(
    units: UnitGraph, unit: Unit, own: Sequence[int | None], found: Sequence[UnitResidency]
) -> Iterator[Residency]:
    """Yields the offloading options of a unit: a fetch for its own first late reader, and a fetch
    for the first consumer that may be recomputed.

    - `own`: for each unit, the time for its own first late reader, see `_first_late`.
    - `found`: the options of all units so far.
    """
    uses = units.uses[unit.index]
    late = [use.time for use in uses if use.is_late]
    readers = {use.reader for use in uses if use.reader is not None}
    again = (option.recompute_at for reader in readers for option in found[reader].options)
    consumers = {units.entry(unit.loop, time) for time in again if time is not None}
    offered: dict[Residency, None] = {}
    first = own[unit.index]
    if first is not None:
        offered[Residency(None, max(late), first)] = None
    if consumers:
        starts = consumers if first is None else {*consumers, first}
        offered[Residency(None, max([*late, *consumers]), min(starts))] = None
    yield from (option for option in offered if _is_of_space(units, unit, option))


def _is_of_space(units: UnitGraph, unit: Unit, residency: Residency) -> bool:
    """Whether one other loop over the same iterations fetches the value for all of its readers.
    True for values outside of loops."""
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
    """Returns the options of each unit with further ones, without duplicates. `offered`: one list
    per unit, or nothing."""
    if not offered:
        return tuple(lifetimes)
    return tuple(
        replace(lifetime, options=tuple(dict.fromkeys((*lifetime.options, *further))))
        for lifetime, further in zip(lifetimes, offered, strict=True)
    )


def with_life(units: UnitGraph, unit: Unit, options: Sequence[Residency]) -> UnitResidency:
    """Returns the options of a unit with the times of its last readers. A result of the function
    gets the only option to be kept until the end of the step."""
    if is_result(units, unit):
        step_end = len(units.units) - 1
        return UnitResidency(step_end, step_end, (Residency(None, step_end),))
    uses = units.uses[unit.index]
    forward = max((use.time for use in uses if not use.is_late), default=unit.index)
    return UnitResidency(forward, last_use(units, unit), tuple(dict.fromkeys(options)))


def last_use(units: UnitGraph, unit: Unit) -> int:
    """Returns the time of the last reader of the unit's result; the unit's own time if there is
    none."""
    return max((use.time for use in units.uses[unit.index]), default=unit.index)


def may_be_recomputed(units: UnitGraph, unit: Unit) -> bool:
    """Whether a unit may be recomputed. A stack from which loops take elements may not, because two
    copies of it would be alive."""
    return unit.may_recompute and not is_result(units, unit) and not units.is_sliced(unit)


def is_result(units: UnitGraph, unit: Unit) -> bool:
    """Whether a unit yields a result of the function."""
    return any(output in units.graph.program.result_values for output in unit.outputs)


def _first_late(units: UnitGraph, unit: Unit) -> int | None:
    """Returns the time at which a dropped unit must run again for its own late readers, or None."""
    late = (use.time for use in units.uses[unit.index] if use.is_late)
    return min((units.entry(unit.loop, time) for time in late), default=None)


def _times(
    units: UnitGraph, unit: int, may_recompute: Sequence[bool], own: Sequence[int | None]
) -> tuple[int, ...]:
    """Returns the times at which a unit may be recomputed: its own, then its nearest consumers', at
    most `MAX_TIMES`."""
    if not may_recompute[unit]:
        return ()
    latest = own[unit]
    reached: dict[int, None] = {} if latest is None else {latest: None}
    seen, wave = {unit}, [unit]
    while wave and len(reached) < MAX_TIMES:
        wave = [
            reader
            for reader in dict.fromkeys(use.reader for index in wave for use in units.uses[index])
            if reader is not None and reader not in seen and may_recompute[reader]
        ]
        seen.update(wave)
        times = (own[reader] for reader in wave)
        entries = (units.entry(units.units[unit].loop, time) for time in times if time is not None)
        reached.update((time, None) for time in entries if latest is None or time < latest)
    return tuple(list(reached)[:MAX_TIMES])


def _unit_residency(
    units: UnitGraph, unit: Unit, times: Sequence[tuple[int, ...]]
) -> UnitResidency:
    uses, last = units.uses[unit.index], last_use(units, unit)
    is_read_late = any(use.is_late for use in uses)
    consumer_times = sorted(
        {time for use in uses if use.reader is not None for time in times[use.reader]}
    )
    options = [Residency(None, last)]
    options += [Residency(None, end) for end in consumer_times if end > last]
    if is_read_late or consumer_times:
        for at in times[unit.index]:
            base = last if is_read_late else at
            options += [Residency(at, end) for end in (base, *consumer_times) if end >= base]
    return with_life(units, unit, options)


def rewritten(units: UnitGraph, recomputed: Set[int]) -> tuple[UnitResidency, ...]:
    """Returns the only residency of every unit, in order, if a rule recomputes the units
    `recomputed`.

    A unit of `recomputed` is kept nevertheless if it cannot be recomputed, is a result of the
    function, or lies after the forward pass.
    """
    again = _times_of_rule(units, {u for u in recomputed if may_run_again(units, units.units[u])})
    return tuple(_residency_by_rule(units, unit, again) for unit in units.units)


def may_run_again(units: UnitGraph, unit: Unit) -> bool:
    """Whether a rule may make the unit run a second time."""
    return unit.phase is Phase.FORWARD and may_be_recomputed(units, unit)


def _times_of_rule(units: UnitGraph, recomputed: Set[int]) -> dict[int, int]:
    """Returns H(u) for the units of `recomputed` that run again."""
    time_of: dict[int, int] = {}
    for unit in reversed(units.units):
        if unit.index not in recomputed:
            continue
        uses = units.uses[unit.index]
        times = [use.time for use in uses if use.is_late]
        times += [time_of[use.reader] for use in uses if use.reader in time_of]
        if times:
            time_of[unit.index] = min(units.entry(unit.loop, time) for time in times)
    return time_of


def _residency_by_rule(units: UnitGraph, unit: Unit, again: dict[int, int]) -> UnitResidency:
    uses, again_at = units.uses[unit.index], again.get(unit.index)
    lasts = [use.time for use in uses if use.is_late]
    lasts += [again[use.reader] for use in uses if use.reader in again]
    # A recomputed value is held again only for late readers and those that run again.
    end = max(lasts if again_at is not None else [last_use(units, unit), *lasts])
    return with_life(units, unit, [Residency(again_at, end)])


def rematerialised_layers(units: UnitGraph) -> tuple[UnitResidency, ...]:
    """Returns the only residency of every unit, in order, as with `jax.checkpoint` around each
    layer, in scans and unrolled programs. A layer begins at the repeated unit for which the fewest
    bytes pass from layer to layer."""
    bodies = forward_bodies(units)
    return rewritten(units, bodies | _inside_of_layers(units, bodies))


def _inside_of_layers(units: UnitGraph, bodies: set[int]) -> set[int]:
    """Returns the forward units that are not in `bodies` and whose results no other layer reads;
    none if no layers repeat."""
    forward = {unit.index for unit in units.units if unit.phase is Phase.FORWARD} - bodies
    # For each unit of the first layer, the equal units of all layers, in order.
    chains = repeated_layers(units).units.chains()
    starts = (sorted(chain) for chain in chains if chain[0] in forward)
    passing = ((_passing(units, layer_starts), layer_starts) for layer_starts in starts)
    best = min(passing, key=lambda pair: (_bytes(units, pair[0]), pair[1]), default=None)
    return set() if best is None else forward - best[0]


def _passing(units: UnitGraph, starts: Sequence[int]) -> set[int]:
    """Returns the forward units whose results another layer reads. `starts`: the first unit of each
    layer."""
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
    return sum(
        values[output].size_bytes for index in passing for output in units.units[index].outputs
    )
