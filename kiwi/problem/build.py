"""The `Problem` of a unit graph on a mesh.

There is a node for every argument and captured constant (its sharding), then one for every unit
(its sharding, and whether its results are kept, recomputed or offloaded), then one for every copy
of a large operand that may be resharded (`kiwi.problem.copies`). An option of a unit is a pair
(sharding strategy, residency), strategy-major.

Edges:

(a) from a value's node to each unit that reads the value: the cost of resharding from the
producer's layout to the layout that the strategy expects, twice if the reader is recomputed. The
reader must not be recomputed at a time at which the value is not live.

(b) from producer and reader to the copy between them: the options that agree with each other, and
the time that a kept copy saves.

(c) from an argument to the unit whose result replaces the argument in the next step (a donated
buffer, or state in and state out), and from the start of a loop's iteration to its end: the cost of
resharding from the result's layout to the argument's layout.

(d) between a reduction in its readers' kernel and the units that it reads, or its readers: the
extra cost if the reduction gets a kernel of its own (`kiwi.problem.reductions_apart`).
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial

import numpy as np

from kiwi.corrections import NO_CORRECTIONS, Corrections
from kiwi.hlo.garbage_collection import without_collection
from kiwi.hlo.large_operators import large_ones
from kiwi.hlo.loops import CARRY, JOIN
from kiwi.hlo.program import Value
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.interval import Interval
from kiwi.kernels.facts import TargetFacts
from kiwi.kernels.graph import KernelGraph
from kiwi.kernels.user_recomputation import units_computed_again
from kiwi.memory.heap import allocated_bytes
from kiwi.memory.live_ranges import LiveRanges, fused_pairs, overwritten_pairs, runs_of
from kiwi.memory.loop_bodies import OperandRead
from kiwi.memory.residency import Residency, UnitResidency, residencies, rewritten, with_offered
from kiwi.memory.timeline import Buffer
from kiwi.mesh import DeviceMesh, ReshardingTable, TensorSharding, enumerate_shardings
from kiwi.problem.copies import (
    NEGLIGIBLE,
    CopyNode,
    CopyOption,
    GatheredResult,
    Reading,
    copy_node,
    never,
    readers_of_copies,
)
from kiwi.problem.costs import UnitWork
from kiwi.problem.crowded_copies import Crowded, crowded
from kiwi.problem.edges import EdgeMatrices, Operand, Side
from kiwi.problem.kernel_kind import KernelKinds, kernel_kinds
from kiwi.problem.operands import Operands
from kiwi.problem.overlap import Overlap
from kiwi.problem.pins import Pins
from kiwi.problem.reductions_apart import UnitOptions, recomputed_apart, reductions_apart
from kiwi.problem.strategies import ShardingStrategy
from kiwi.problem.strategy_table import StrategyTable
from kiwi.problem.unit_memory import lent_again, unit_memory
from kiwi.solver.problem import Edge, Node, Problem
from kiwi.timings import timed

LEAST_OFFLOADED = 0.001
"""A value whose part on each device is below this fraction of the memory limit is not offloaded."""


@dataclass(frozen=True)
class Fixed:
    """The caller's restrictions of a problem and additions to it.

    - `arguments`: value index of an argument → its sharding.
    - `results`: position among the function's results → its sharding.
    - `carried`: position of a result → value index of the argument that it replaces in the next
      step. The result should have the argument's sharding.
    - `recompute`: whether recomputation may be planned.
    - `values`: value index of a unit's result → its sharding, if a strategy of the unit yields it.
    - `rewrite`: the set of units that are recomputed; None leaves the choice to the solver.
    - `offered`: for each unit, further residencies. With the residencies of other plans of the same
      step, these plans become solutions of this problem.
    - `pins`: the user's pins (`kiwi.problem.pins`). Each leaves at least one option.
    - `host_limit_bytes`: the host memory of each device; None offloads nothing.
    - `offloads_pinned_only`: whether only values that the user asks to offload are offloaded.
    - `corrections`: corrections of prices by compiled programs.
    """

    arguments: Mapping[int, TensorSharding]
    results: Mapping[int, TensorSharding]
    carried: Mapping[int, int]
    recompute: bool = True
    values: Mapping[int, TensorSharding] = field(default_factory=dict)
    rewrite: frozenset[int] | None = None
    offered: tuple[tuple[Residency, ...], ...] = ()
    pins: Pins = field(default_factory=Pins)
    host_limit_bytes: int | None = None
    offloads_pinned_only: bool = False
    corrections: Corrections = NO_CORRECTIONS

    def least_offloaded_bytes(
        self, facts: TargetFacts, limit_bytes: int | None, devices: int
    ) -> Callable[[Unit], float] | None:
        """Returns a function that gives, for a unit, the least bytes over all devices of a result
        that may be offloaded; None if nothing is offloaded."""
        if self.host_limit_bytes is None:
            return None
        least = LEAST_OFFLOADED * (limit_bytes or 0) * devices
        least = math.inf if self.offloads_pinned_only else least

        def least_of(unit: Unit) -> float:
            if not facts.may_offload(in_scan=unit.loop is not None):
                return math.inf
            return self.pins.least_offloaded_bytes(unit, least)

        return least_of


@dataclass(frozen=True, eq=False)
class SourceNode:
    """The options of an argument or constant: its possible shardings."""

    value: int
    shardings: tuple[TensorSharding, ...]


@dataclass(frozen=True, eq=False)
class UnitNode:
    """The options of a unit: strategies x residencies, strategy-major."""

    unit: int
    strategies: tuple[ShardingStrategy, ...]
    residency: UnitResidency

    def choice(self, option: int) -> tuple[ShardingStrategy, Residency]:
        """The strategy and the residency of the option with an index."""
        strategy, residency = divmod(option, len(self.residency.options))
        return self.strategies[strategy], self.residency.options[residency]

    def options_where(self, fits: Callable[[ShardingStrategy, Residency], bool]) -> list[int]:
        """The indices of the options whose strategy and residency meet a condition."""
        pairs = itertools.product(self.strategies, self.residency.options)
        return [option for option, pair in enumerate(pairs) if fits(*pair)]


KeptCopies = frozenset[OperandRead]
"""The reads that use an earlier reader's copy."""

NONE_KEPT: KeptCopies = frozenset()


@dataclass(frozen=True, eq=False)
class OfferedOptions:
    """The options of a step on a mesh, before nodes and edges are built.

    - `sources`: the options of arguments and constants.
    - `unit_nodes`: the options of units, in order.
    - `crowded`: the units at which copies to the host and back crowd in loops.
    - `operands`: the resharding of operands, shared by all problems of the step.
    """

    kernels: KernelGraph
    mesh: DeviceMesh
    fixed: Fixed
    sources: tuple[SourceNode, ...]
    unit_nodes: tuple[UnitNode, ...]
    crowded: Crowded
    operands: Operands

    @property
    def units(self) -> UnitGraph:
        """The units of the step, in order."""
        return self.kernels.units

    @property
    def facts(self) -> TargetFacts:
        """The facts of the target that hold for any program."""
        return self.kernels.facts

    @functools.cached_property
    def overlap(self) -> Overlap:
        """The overlap of computation with communication and with copies to the host and back."""
        on_host = self.units.graph.program.host_values
        copies = bool(on_host) or self.fixed.host_limit_bytes is not None
        overlap = Overlap.on(self.kernels, copies=copies)
        share = self.fixed.corrections.overlap * overlap.share
        overlap = replace(overlap, share=share, crowded=self.crowded)
        if not self.facts.sums_beside_one_kernel:
            return overlap
        combined_bytes = self.facts.combined_sums_bytes
        return replace(overlap, kernel_seconds=self._least_seconds, combined_bytes=combined_bytes)

    @functools.cached_property
    def _least_seconds(self) -> Mapping[int, float]:
        """The least seconds of each large unit."""
        large = (unit.index for unit in large_ones(self.units))
        return {k: self._work(k).least_seconds(self.mesh.size) for k in large}

    def crowding(self, residencies: Iterable[Residency]) -> Crowded:
        """The units at which copies to the host and back crowd, if units have these residencies."""
        program, copied, fetched = self.units.graph.program, {}, {}
        for unit, residency in zip(self.units.units, residencies, strict=True):
            if residency.fetch_at is not None and unit.loop is not None:
                held = sum(program.values[value].size_bytes for value in unit.outputs)
                bandwidth = self.mesh.size * self.mesh.hardware.host_bandwidth_bytes_per_second
                copied[unit.index] = program.trips(unit.loop) * held / bandwidth
                reader = self.units.units[residency.fetch_at]
                fetched[unit.index] = reader.loop, reader.index
        if not fetched:
            return Crowded()
        return crowded(self.units, self._least_seconds, copied, fetched)

    @functools.cached_property
    def _kinds(self) -> KernelKinds:
        return kernel_kinds(self.kernels, self.mesh)

    def _work(self, unit: int) -> UnitWork:
        return self._kinds.of(self.units.units[unit]).work

    def local_bytes(self, value: int, layout: TensorSharding) -> int:
        """Bytes of one device's part of a value in a layout."""
        return self.kernels.storage.local_bytes(value, layout, self.mesh.shape)

    def copied_bytes(self, moved: Value, layout: TensorSharding) -> int:
        """Bytes of one device's part of a copy of a moved value in a layout."""
        return self.kernels.storage.copied_bytes(moved, layout, self.mesh.shape)

    def allocated_bytes(self, buffers: Sequence[Buffer], horizon: int) -> int:
        """The bytes that the compiler's heap needs for buffers, which may be more than the most
        bytes alive at once."""
        return allocated_bytes(buffers, horizon, self.units)

    def seconds_to_host(self, held: Sequence[Sequence[Interval]]) -> np.ndarray:
        """Float [options]: the seconds of copying a unit's offloaded results to the host, or back.
        `held` is the unit's host memory by option."""
        held_bytes = np.array(
            [sum(interval.bytes for interval in intervals) for intervals in held], dtype=np.float64
        )
        return held_bytes / self.mesh.hardware.host_bandwidth_bytes_per_second

    def resharding_table(self, value: int, reader: Unit | None = None) -> ReshardingTable:
        """The prices of resharding between the layouts of a value, for a unit that reads it."""
        return self.operands.table(value, reader)

    @functools.cached_property
    def stored(self) -> dict[int, tuple[int, tuple[TensorSharding, ...]]]:
        """For each value with a buffer, the number of its node, and the value's layout under each
        strategy or sharding of the node."""
        layouts_of_value = {
            source.value: (k, source.shardings) for k, source in enumerate(self.sources)
        }
        for number, node in enumerate(self.unit_nodes, start=len(self.sources)):
            for k, value in enumerate(self.units.units[node.unit].outputs):
                layouts_of_value[value] = (
                    number,
                    tuple(strategy.results[k] for strategy in node.strategies),
                )
        return layouts_of_value

    def carried(self, *, known: bool = False) -> Iterator[tuple[int, int, float]]:
        """Yields, for each value that a step or an iteration starts from, the value, the value that
        replaces it in the next step or iteration, and how often that is moved in a step. Results of
        branches are included. `known`: whether to count only the trips that XLA knows."""
        program = self.units.graph.program
        carried = [
            (argument, program.results[position], 1.0)
            for position, argument in self.fixed.carried.items()
        ]
        for loop in program.loops:
            trips = (program.known_trips if known else program.trips)(loop.index)
            carried += [(carry.current, carry.next, trips) for carry in loop.carries]
        for start, value, trips in carried:
            if isinstance(value, int) and value in self.stored:
                yield start, value, trips

    def result_seconds(self, node: UnitNode) -> np.ndarray:
        """Float [strategies]: the seconds of resharding a unit's results to the layouts that the
        caller fixed."""
        seconds, results = np.zeros(len(node.strategies)), self.units.graph.program.results
        for position, wanted in self.fixed.results.items():
            value, outputs = results[position], self.units.units[node.unit].outputs
            if isinstance(value, int) and value in outputs and position not in self.fixed.carried:
                layouts = self.stored[value][1]
                seconds += self.resharding_table(value).seconds_matrix(layouts, [wanted])[:, 0]
        return seconds

    def operand(self, unit: Unit, value: int) -> Operand:
        """The facts about a value as an operand of a unit."""
        overlap = partial(self.overlap.gathered, unit, value)
        moves = self.overlap.overlapping_moves(unit, value)
        return Operand(*self.operands.read(unit, value), overlap, moves)


MOST_RESTRICTIONS = 4
"""A problem caches this many restricted problems and drops the oldest beyond them: for the best
solution and the solution that it is compared with, each with and without the choice of copies."""


@dataclass(frozen=True, eq=False)
class PlanningProblem(OfferedOptions):
    """A `Problem` together with the meaning of its nodes and options. The problem's nodes are
    `sources`, then `unit_nodes`, then `copies`."""

    copies: tuple[CopyNode, ...]
    problem: Problem

    def source_shardings(self, solution: Sequence[int]) -> dict[int, TensorSharding]:
        """The sharding chosen for each argument and constant, by value index."""
        chosen = zip(self.sources, solution[: len(self.sources)], strict=True)
        return {source.value: source.shardings[option] for source, option in chosen}

    def unit_choices(self, solution: Sequence[int]) -> list[tuple[ShardingStrategy, Residency]]:
        """The strategy and the residency chosen for each unit, in order."""
        first_unit = len(self.sources)
        chosen = zip(
            self.unit_nodes, solution[first_unit : first_unit + len(self.unit_nodes)], strict=True
        )
        return [node.choice(option) for node, option in chosen]

    def layouts(self, solution: Sequence[int]) -> dict[int, TensorSharding]:
        """The layout in which each argument, constant and result of a unit is stored, by value
        index."""
        layout_of_value = self.source_shardings(solution)
        for unit, (strategy, _) in zip(self.units.units, self.unit_choices(solution), strict=True):
            layout_of_value.update(zip(unit.outputs, strategy.results, strict=True))
        return layout_of_value

    def kept_copies(self, solution: Sequence[int]) -> KeptCopies:
        """The reads whose copies a solution keeps, if the problem offers to keep copies."""
        first_copy = len(self.sources) + len(self.unit_nodes)
        chosen = zip(self.copies, solution[first_copy : first_copy + len(self.copies)], strict=True)
        return frozenset(
            copy.operand_read
            for copy, option in chosen
            if copy.options[option].reading is Reading.KEPT
        )

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers of a problem in which each node has one option."""
        usages = (node.usage[0] for node in self.problem.nodes)
        return tuple(buffer for usage in usages for buffer in usage if isinstance(buffer, Buffer))

    def restricted(
        self, solution: Sequence[int], kept: KeptCopies | None = NONE_KEPT
    ) -> "PlanningProblem":
        """The problem with the chosen options only, with edges split into parts.

        `kept`: the reads that use an earlier copy. The only solution is then all zeros. With `kept`
        None, the choice of copies stays open, and the first option of each copy makes it.

        Only restricted problems split edges into parts: to split all edges of the whole problem
        would triple its memory. The last few restricted problems are cached, because a solution is
        priced, estimated and explained.
        """
        key = tuple(solution), kept
        if key not in self._restrictions:
            while len(self._restrictions) >= MOST_RESTRICTIONS:
                del self._restrictions[next(iter(self._restrictions))]
            assembly = self._assembly_of(tuple(solution))
            self._restrictions[key] = assembly.problem(self.problem.limit_bytes, kept)
        return self._restrictions[key]

    @functools.cached_property
    def _restrictions(
        self,
    ) -> "dict[tuple[tuple[int, ...], KeptCopies | None], PlanningProblem]":
        return {}

    def _assembly_of(self, solution: tuple[int, ...]) -> "_Assembly":
        """Returns the assembly of the chosen options. Problems that differ only in the kept copies
        share the assembly."""
        if solution not in self._assemblies:
            while len(self._assemblies) >= MOST_RESTRICTIONS // 2:
                del self._assemblies[next(iter(self._assemblies))]
            self._assemblies[solution] = _Assembly(self._chosen(solution), self._split_matrices)
        return self._assemblies[solution]

    @functools.cached_property
    def _assemblies(self) -> "dict[tuple[int, ...], _Assembly]":
        return {}

    @functools.cached_property
    def _split_matrices(self) -> EdgeMatrices:
        return EdgeMatrices(with_parts=True)

    def _chosen(self, solution: Sequence[int]) -> OfferedOptions:
        layouts = self.source_shardings(solution).items()
        sources = tuple(SourceNode(value, (layout,)) for value, layout in layouts)
        choices = zip(self.unit_nodes, self.unit_choices(solution), strict=True)
        nodes = tuple(
            UnitNode(node.unit, (strategy,), replace(node.residency, options=(residency,)))
            for node, (strategy, residency) in choices
        )
        crowded = self.crowding(residency for _, residency in self.unit_choices(solution))
        shared = self.kernels, self.mesh, self.fixed
        return OfferedOptions(*shared, sources, nodes, crowded, self.operands)

    def crowded_as(self, solution: Sequence[int]) -> "PlanningProblem":
        """The same problem, with loop bodies divided at the units where the copies of a solution
        crowd. If they are divided there already, the problem itself."""
        crowded = self.crowding(residency for _, residency in self.unit_choices(solution))
        if crowded == self.crowded:
            return self
        shared = self.kernels, self.mesh, self.fixed, self.sources, self.unit_nodes
        offered = OfferedOptions(*shared, crowded, self.operands)
        return _Assembly(offered).problem(self.problem.limit_bytes)


@timed("problem")
@without_collection()
def build_problem(
    kernels: KernelGraph, mesh: DeviceMesh, fixed: Fixed, limit_bytes: int | None
) -> PlanningProblem:
    """Builds the problem of a step: enumerates options and prices them. `limit_bytes`: the memory
    limit of a device; None for no limit."""
    units = kernels.units
    program = units.graph.program
    values = (*program.arguments, *program.constants)
    sources = tuple(_source_node(units, mesh, fixed, value) for value in values)
    if fixed.rewrite is None:
        least = fixed.least_offloaded_bytes(kernels.facts, limit_bytes, mesh.size)
        lifetimes = residencies(units, recompute=fixed.recompute, least_offloaded_bytes=least)
    else:
        lifetimes = rewritten(units, fixed.rewrite)
    lifetimes = with_offered(lifetimes, fixed.offered)
    table = StrategyTable(kernels, mesh, fixed.corrections)
    unit_nodes = tuple(
        UnitNode(
            unit.index,
            _strategies(table, unit, fixed),
            fixed.pins.residency(unit, lifetimes[unit.index]),
        )
        for unit in units.units
    )
    offered = OfferedOptions(
        kernels, mesh, fixed, sources, unit_nodes, Crowded(), Operands(kernels, mesh)
    )
    return _Assembly(offered).problem(limit_bytes)


def chosen_problem(
    kernels: KernelGraph,
    mesh: DeviceMesh,
    fixed: Fixed,
    sources: tuple[SourceNode, ...],
    nodes: tuple[UnitNode, ...],
    limit_bytes: int,
) -> PlanningProblem:
    """Returns the problem in which each node has one option: decisions that were made elsewhere,
    priced for these kernels. `sources` and `nodes` have one option each."""
    chosen = OfferedOptions(
        kernels, mesh, fixed, sources, nodes, Crowded(), Operands(kernels, mesh)
    )
    return _Assembly(chosen).problem(limit_bytes)


def _strategies(table: StrategyTable, unit: Unit, fixed: Fixed) -> tuple[ShardingStrategy, ...]:
    """Returns the strategies that yield a unit's fixed layouts and move the fewest bytes. If
    nothing is fixed, the strategies that agree with the pins; if no strategy yields the fixed
    layouts, the undominated strategies."""
    wanted = [fixed.values.get(output) for output in unit.outputs]
    if all(sharding is None for sharding in wanted):
        return fixed.pins.strategies(table, unit)
    yielding = [
        candidate
        for candidate in table.all_of(unit)
        if all(
            layout in (None, result)
            for layout, result in zip(wanted, candidate.results, strict=True)
        )
    ]
    moved = [_moved_bytes(table, unit, strategy, fixed) for strategy in yielding]
    least = min(moved, default=(False, 0, 0))
    selected = tuple(
        candidate for candidate, size in zip(yielding, moved, strict=True) if size == least
    )
    return selected or table.of(unit)


def _moved_bytes(
    table: StrategyTable, unit: Unit, strategy: ShardingStrategy, fixed: Fixed
) -> tuple[bool, int, int]:
    """Returns the sort key of a strategy for `_strategies`: whether it expects operands in other
    layouts than the fixed ones, the local bytes of these operands and of collectives, and the bytes
    of these operands alone. XLA's partitioner takes operands as they lie if it can."""
    layouts, values = {**fixed.values, **fixed.arguments}, table.units.graph.program.values
    operands = sum(
        values[value].size_bytes // expected.shard_count(table.mesh.shape)
        for (value, _), expected in zip(unit.rule.reads, strategy.reads, strict=True)
        if layouts.get(value, expected) != expected
    )
    return (
        operands > 0,
        operands + sum(collective.bytes for collective in strategy.collectives),
        operands,
    )


def _source_node(units: UnitGraph, mesh: DeviceMesh, fixed: Fixed, value: int) -> SourceNode:
    info = units.graph.program.values[value]
    replicated = TensorSharding.replicated(len(info.shape))
    if value in fixed.arguments:
        return SourceNode(value, (fixed.arguments[value],))
    if value in units.graph.program.constants or info.is_extended:
        return SourceNode(value, (replicated,))
    return SourceNode(value, fixed.pins.of_source(value, enumerate_shardings(info.shape, mesh)))


class _Assembly:
    """Builds the nodes and edges of the offered options. Problems that differ only in the kept
    copies share everything except the copies."""

    def __init__(self, offered: OfferedOptions, matrices: EdgeMatrices | None = None) -> None:
        self._offered, self._units, self._kernels = offered, offered.units, offered.kernels
        self._matrices = matrices or EdgeMatrices(with_parts=False)
        self.ranges = LiveRanges.of(offered.units)
        self._overwritten = overwritten_pairs(offered.units, self._kernels.overwritable)
        self._fused = fused_pairs(offered.units)
        nodes = zip(offered.units.units, offered.unit_nodes, strict=True)
        again = (
            (unit, [residency.recompute_at for residency in node.residency.options])
            for unit, node in nodes
        )
        self._lent = lent_again(offered.kernels, again)

    @timed("problem")
    def problem(
        self, limit_bytes: int | None, kept: KeptCopies | None = NONE_KEPT
    ) -> PlanningProblem:
        """The problem under a memory limit. `kept`: the reads that use an earlier copy; None leaves
        the choice open."""
        offered = self._offered
        least = math.inf if limit_bytes is None else NEGLIGIBLE * limit_bytes
        if self._matrices.with_parts and limit_bytes is not None:
            # Copies of one solution are few, so that they can count even under a large limit.
            whole_bytes = sum(value.size_bytes for value in offered.units.graph.program.values)
            least = min(least, NEGLIGIBLE * (whole_bytes // offered.mesh.size))
        copies = self._copies(least, kept)
        nodes = (*self._own_nodes, *(self._node_of_copy(copy, copies) for copy in copies))
        reads, other_edges = self._own_edges
        edges = (*reads, *self._copy_edges(copies), *other_edges)
        sizes = limit_bytes, self.ranges.horizon, offered.fixed.host_limit_bytes
        parts = {option.name: getattr(offered, option.name) for option in fields(OfferedOptions)}
        return PlanningProblem(**parts, copies=copies, problem=Problem(nodes, edges, *sizes))

    def _copies(self, least_bytes: float, kept: KeptCopies | None) -> tuple[CopyNode, ...]:
        copies: Iterable[CopyNode] = self._find_copies(least_bytes, kept)
        if kept != NONE_KEPT:
            # With `fixed.values` the shardings are XLA's own
            # (`kiwi.plans.estimate_without_barriers`): XLA may keep any copy.
            may_keep = NONE_KEPT if self._offered.fixed.values else kept
            copies = readers_of_copies(self._offered.units, copies, may_keep)
        return (*copies, *self._gathered_results(least_bytes))

    @functools.cached_property
    def _own_nodes(self) -> tuple[Node, ...]:
        """The nodes of sources and units."""
        return (
            *(self._node_of_source(source) for source in self._offered.sources),
            *(self._node_of_unit(node) for node in self._offered.unit_nodes),
        )

    @functools.cached_property
    def _own_edges(self) -> tuple[tuple[Edge, ...], tuple[Edge, ...]]:
        """The edges between sources and units: edges (a), then edges (c) and (d)."""
        other_edges = (*self._carried_edges(), *self._edges_of_reductions())
        return tuple(self._read_edges()), other_edges

    def _find_copies(self, least: float, kept: KeptCopies | None) -> Iterator[CopyNode]:
        """Yields a node for each read that may be resharded. Copies of fewer local bytes than
        `least` are negligible. They are left out if no copy may be kept."""
        values, shape = self._units.graph.program.values, self._offered.mesh.shape
        for node in self._offered.unit_nodes:
            unit = self._units.units[node.unit]
            if self._units.border(unit) == JOIN:
                continue  # The branch writes the result in place.
            transposed = dict(self._kernels[node.unit].transposed_copies)
            for read, (value, _) in enumerate(unit.rule.reads):
                wanted = [strategy.reads[read] for strategy in node.strategies]
                shards = min(layout.shard_count(shape) for layout in set(wanted))
                is_negligible = values[value].size_bytes < least * shards
                if is_negligible and kept == NONE_KEPT:
                    continue
                layouts, residencies = self._offered.stored[value][1], node.residency.options
                moved = self._kernels[node.unit].moved[read]
                transposes = never
                if read in transposed:
                    transposes = partial(transposed[read].is_transposed, shape)
                copy = copy_node(node.unit, read, moved, layouts, wanted, residencies, transposes)
                if copy is not None:
                    yield replace(copy, is_negligible=is_negligible)

    def _gathered_results(self, least: float) -> Iterator[GatheredResult]:
        """Yields a node for each result of at least `least` bytes that takes over a donated
        argument, if collectives may bring the result into the argument's layout."""
        values = self._units.graph.program.values
        for argument, value, _ in self._offered.carried():
            if not self._is_copied(argument, value) or values[value].size_bytes < least:
                continue
            argument_side, result_side = self._producer(argument), self._producer(value)
            place = self._units.producer[value], -1, values[value]
            copy = copy_node(
                *place, result_side.layouts, argument_side.layouts, argument_side.residencies
            )
            if copy is not None:
                yield GatheredResult(**vars(copy), argument=argument)

    def _is_copied(self, argument: int, value: int) -> bool:
        """Returns whether a result takes over a donated argument that collectives may not write
        to."""
        is_over = self._units.aliased_results.get(value) == argument
        return is_over and self._offered.facts.copies_gathered_results

    def _node_of_copy(self, copy: CopyNode, copies: Sequence[CopyNode]) -> Node:
        def again(_: int, option: CopyOption) -> tuple[int, ...]:
            return option.again

        usage = tuple(
            copy.buffers(option, self._offered.copied_bytes, self.ranges, copies, again)
            for option in copy.options
        )
        zero = np.zeros(len(usage))
        return Node(f"copy {copy.unit}.{copy.read}", zero, usage, {"resharding": zero})

    def _node_of_source(self, source: SourceNode) -> Node:
        usage = tuple(
            self.ranges.of_argument(source.value, self._offered.local_bytes(source.value, sharding))
            for sharding in source.shardings
        )
        zero = np.zeros(len(usage))
        on_host = self._held_by_host(source)
        return Node(f"argument {source.value}", zero, usage, {"compute": zero}, host_usage=on_host)

    def _held_by_host(self, source: SourceNode) -> tuple[tuple[Interval, ...], ...]:
        """Returns the host memory by option of an argument that the caller keeps on the host; empty
        for other arguments."""
        if source.value not in self._units.graph.program.host_values:
            return ()
        sizes = (self._offered.local_bytes(source.value, sharding) for sharding in source.shardings)
        return tuple((Interval(0, self.ranges.horizon, size),) for size in sizes)

    def _node_of_unit(self, node: UnitNode) -> Node:
        unit = self._units.units[node.unit]
        compute = np.array([strategy.compute_seconds for strategy in node.strategies])
        computed_again = np.array([strategy.again_seconds for strategy in node.strategies])
        communication = np.array([strategy.communication_seconds for strategy in node.strategies])
        resharding = self._offered.result_seconds(node)
        again = np.array([float(residency.recomputes) for residency in node.residency.options])
        extra_seconds = self._stacking_seconds(node) + self._row_seconds(node)
        parts = {
            "compute": compute.repeat(len(again)) + extra_seconds,
            "communication": communication.repeat(len(again)),
            "resharding": resharding.repeat(len(again)),
            "recompute": np.outer(computed_again + communication, again).ravel(),
        }
        overlap, times = self._offered.overlap, node.residency.options
        if self._units.graph.program.equations[unit.root].is_transfer:
            loads = overlap.copied(unit, compute, times)
            parts["compute"], parts["communication"] = parts["communication"], parts["compute"]
        else:
            loads = overlap.computed(unit, compute, computed_again, times)
            loads += overlap.apart(unit, extra_seconds) if extra_seconds.any() else ()
        loads += overlap.reduced(unit, node.strategies, times)
        host_usage = self._host_usage(node)
        if host_usage:
            seconds = self._offered.seconds_to_host(host_usage)
            parts["communication"] = parts["communication"] + 2 * seconds
            loads += overlap.offloaded(unit, seconds, times)
        if unit.index in units_computed_again(self._units):
            for part in ("compute", "communication"):
                parts["recompute"] = parts["recompute"] + parts[part]
                parts[part] = np.zeros_like(parts[part])
        name = f"unit {node.unit} ({self._units.graph.opcode_of(unit.root)})"
        costs = np.sum(list(parts.values()), axis=0)
        return Node(name, costs, self._usage(node), parts, loads, host_usage)

    def _stacking_seconds(self, node: UnitNode) -> np.ndarray:
        """Returns float [options]: the seconds of copying a unit's results to stacks, for options
        whose results another loop reads."""
        unit, mesh = self._units.units[node.unit], self._offered.mesh
        passes = self._kernels[node.unit].stack_passes
        if not passes or unit.loop is None:
            return np.zeros(len(node.strategies) * len(node.residency.options))
        behind = self.ranges.spans[unit.loop][1]
        is_stacked = [
            residency.again_at is None and residency.end >= behind
            for residency in node.residency.options
        ]
        sizes = [strategy.result_bytes for strategy in node.strategies]
        per_byte = passes / mesh.hardware.sustained_memory_bytes_per_second
        trips = self._units.graph.program.trips(unit.loop)
        # A kernel of its own writes an iteration's start value to the stack.
        is_carry = self._units.border(unit) == CARRY
        launch = mesh.hardware.kernel_launch_seconds if is_carry else 0.0
        seconds = per_byte * np.array(sizes) + launch
        return trips * np.outer(seconds, is_stacked).ravel()

    def _row_seconds(self, node: UnitNode) -> np.ndarray:
        """Returns float [options]: the extra seconds of reducing masked rows, and of a kernel of
        its own for a kept reduction that is summed once (`RowReduction`)."""
        rows, mesh = self._kernels[node.unit].rows, self._offered.mesh
        again = np.array([residency.recomputes for residency in node.residency.options])
        if rows is None:
            return np.zeros(len(node.strategies) * len(again))
        apart = np.array([strategy.apart_seconds for strategy in node.strategies])
        shards = np.array(
            [strategy.results[0].shard_count(mesh.shape) for strategy in node.strategies]
        )
        more_bytes = np.where(again, rows.masked_again_bytes, rows.masked_once_bytes)
        waits = np.outer((apart > 0) / shards, more_bytes)
        waits *= rows.masked_elements / mesh.hardware.sustained_memory_bytes_per_second
        return (waits + np.outer(apart * rows.is_summed_once, ~again)).ravel()

    def _host_usage(self, node: UnitNode) -> tuple[tuple[Interval, ...], ...]:
        """Returns the host memory of a unit by option; empty if no option uses any."""
        unit, options = self._units.units[node.unit], node.residency.options
        if all(residency.fetch_at is None for residency in options):
            return ()
        (value,), shape = unit.outputs, self._offered.mesh.shape
        whole_bytes = self._units.graph.program.values[value].size_bytes
        sizes = [
            whole_bytes // strategy.results[0].shard_count(shape) for strategy in node.strategies
        ]
        return tuple(
            ()
            if residency.fetch_at is None
            else (self.ranges.on_host(unit, residency.fetch_at, size),)
            for size in sizes
            for residency in options
        )

    def _usage(self, node: UnitNode) -> tuple[tuple[Interval, ...], ...]:
        """Returns the device memory of a unit by option. Strategies with equal memory share their
        tuples."""
        unit, residency = self._units.units[node.unit], node.residency
        runs = [
            runs_of(self._units, unit, residency, option, self._overwritten, self._fused)
            for option in residency.options
        ]
        held = [unit_memory(self._kernels, unit, strategy) for strategy in node.strategies]
        lent = [self._lent[node.unit]] if node.unit in self._lent else []
        known = {
            memory: [
                (*memory.buffers(self.ranges, unit, option_runs), *lent) for option_runs in runs
            ]
            for memory in dict.fromkeys(held)
        }
        return tuple(usage for memory in held for usage in known[memory])

    def _producer(self, value: int) -> Side:
        """Returns the side of the node that yields a value."""
        if value not in self._producers:
            self._producers[value] = self._make_producer(value)
        return self._producers[value]

    @functools.cached_property
    def _producers(self) -> dict[int, Side]:
        return {}

    def _make_producer(self, value: int) -> Side:
        number, layouts = self._offered.stored[value]
        unit = number - len(self._offered.sources)
        if unit < 0:
            return Side.of(number, layouts)
        return Side.of(number, layouts, self._offered.unit_nodes[unit].residency.options)

    def _reader(self, node: UnitNode, read: int) -> Side:
        """Returns the side of a unit's node for one of its reads."""
        wanted = (strategy.reads[read] for strategy in node.strategies)
        return Side.of(len(self._offered.sources) + node.unit, wanted, node.residency.options)

    def _read_edges(self) -> Iterator[Edge]:
        """Yields edges (a)."""
        for node in self._offered.unit_nodes:
            unit = self._units.units[node.unit]
            for read, (value, _) in enumerate(unit.rule.reads):
                stored, wanted = self._producer(value), self._reader(node, read)
                edge = self._matrices.read_edge(stored, wanted, self._offered.operand(unit, value))
                if edge is not None:
                    yield edge

    def _copy_edges(self, copies: Sequence[CopyNode]) -> Iterator[Edge]:
        """Yields edges (b)."""
        nodes = self._offered.unit_nodes
        for index, copy in enumerate(copies, start=len(self._offered.sources) + len(nodes)):
            stored = self._producer(copy.value)
            operand = self._offered.operand(self._units.units[copy.unit], copy.value)
            yield self._matrices.edge_into_copy(stored, index, copy, operand)
            if isinstance(copy, GatheredResult):
                wanted = self._producer(copy.argument)
            else:
                wanted = self._reader(nodes[copy.unit], copy.read)
            yield self._matrices.edge_from_copy(index, copy, wanted)

    def _carried_edges(self) -> Iterator[Edge]:
        """Yields edges (c)."""
        for argument, value, trips in self._offered.carried():
            argument_side, result_side = self._producer(argument), self._producer(value)
            table = self._offered.resharding_table(value)
            layouts = argument_side.layouts if self._is_copied(argument, value) else ()
            copied = self._copied_seconds(argument, layouts)
            edge = self._matrices.carried_edge(argument_side, result_side, table, trips, copied)
            if edge is not None:
                yield edge

    def _copied_seconds(self, argument: int, layouts: Sequence[TensorSharding]) -> np.ndarray:
        """Returns, by layout, the seconds of copying a donated argument and the result that takes
        over its buffer (`GatheredResult`)."""
        sizes = np.array([self._offered.local_bytes(argument, layout) for layout in layouts])
        hardware = self._offered.mesh.hardware
        moved = 2 * sizes / hardware.sustained_memory_bytes_per_second
        return 2 * (moved + hardware.kernel_launch_seconds)

    def _edges_of_reductions(self) -> Iterator[Edge]:
        """Yields edges (d)."""
        offered = self._offered

        def options(unit: int) -> UnitOptions:
            node = offered.unit_nodes[unit]
            apart_seconds = np.array([strategy.apart_seconds for strategy in node.strategies])
            number = len(offered.sources) + unit
            return UnitOptions(number, apart_seconds, node.residency.options)

        with_parts, overlap = self._matrices.with_parts, offered.overlap
        yield from reductions_apart(offered.kernels, options, overlap, with_parts=with_parts)
        yield from recomputed_apart(offered.kernels, options, overlap, with_parts=with_parts)
