"""The constraints and hints of a call as `Pins` of its problem. Each pin is checked by itself.

An error names a sharding pin that (1) does not fit the mesh or the shape, (2) contradicts another
pin of the same value, or (3) is yielded by no sharding strategy of the operator. An error also
names a residency pin if the operator offers no such residency. Pins that are possible one by one
may together exceed a budget: `kiwi.planners.problem_planner` then names them.

Sharding constraints in the function are pins as well, and so are the shardings of its arguments:
of `jax.ShapeDtypeStruct`s, and of arrays over Explicit axes. Impossible pins of these kinds are
left out, and a note says so. The mesh of such a sharding may have other axes than the plan's mesh,
if each of its axes is a product of the plan's axes in their order (`kiwi.mesh.axes_of_mesh`).
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from kiwi.calls.constraints import Constraints, matched, slash_path
from kiwi.calls.signature import on_plan_mesh, to_tensor_sharding
from kiwi.errors import InvalidArgumentError, KiwiError, ShardingConflictError
from kiwi.hlo import jax_internals
from kiwi.hlo.program import Program
from kiwi.hlo.sharding_constraints import constraint_spec
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.kernels.graph import KernelGraph
from kiwi.memory.residency import residencies
from kiwi.mesh import DeviceMesh, enumerate_shardings
from kiwi.messages import topics
from kiwi.options import Settings
from kiwi.problem.exclusions import rule_exclusions, why_not_recomputed
from kiwi.problem.pins import Pin, Pins
from kiwi.problem.step import StepToPlan
from kiwi.problem.strategy_table import StrategyTable

POLICY = "the policy of jax.checkpoint"
"""The label of the offload pins that come from the function's own checkpoint policies."""


def resolve_pins(
    step: StepToPlan,
    settings: Settings,
    kernels: KernelGraph,
    *,
    heeds_hints: bool,
    recomputes: bool,
    offloads: Callable[[Unit], float] | None,
) -> Pins:
    """Returns all pins of a call, without pins that the settings drop.

    - `heeds_hints`: whether hints and the function's own constraints become pins.
    - `recomputes`: whether hints to keep or to recompute become pins.
    - `offloads`: returns the least bytes of a unit's result that may be offloaded; None if hints to
      offload are ignored.

    **Raises:** `ShardingConflictError` or `InvalidArgumentError` for a pin that is impossible.
    """
    mesh, dropped = settings.mesh, settings.dropped_pins
    pins_of_value: dict[int, tuple[Pin, ...]] = {}
    pins = [*_argument_pins(step, settings.constraints, mesh)]
    if heeds_hints:
        pins += _hint_pins(step, mesh, recomputes=recomputes, offloads=offloads is not None)
    for value, pin in pins:
        known = pins_of_value.get(value, ())
        if pin.label not in dropped:
            for earlier_pin in known:
                if not _agree(earlier_pin, pin):
                    raise ShardingConflictError(
                        f"{earlier_pin.label} and {pin.label} contradict each other.",
                        topic=topics.CONTRADICTION,
                    )
            pins_of_value[value] = (*known, pin)
    check = _Check(step.units, mesh, kernels, Pins(pins_of_value), offloads)
    check.run()
    pins_of_value |= check.possible_arguments(asked_pins(step, settings), dropped)
    if heeds_hints and settings.respect_user_shardings:
        pins_of_value |= check.possible_constraints(dropped)
    if offloads is not None:
        pins_of_value = check.with_possible_offloads(pins_of_value)
    return Pins(pins_of_value)


def asked_pins(step: StepToPlan, settings: Settings) -> dict[int, Pin]:
    """Returns the pins from the arguments' own shardings, by value index. An argument whose
    sharding `in_shardings` gives has none. A pin has no layout if the plan's mesh lacks an axis."""
    if not settings.respect_user_shardings:
        return {}
    call, mesh = step.call, settings.mesh
    return {
        step.program.arguments[k]: _soft_pin(
            f"the sharding of argument {call.paths[k]}", asked, call.shapes[k].shape, mesh
        )
        for k, asked in enumerate(call.asked)
        if asked is not None and k not in call.given_shardings and call.shapes[k].shape
    }


def _argument_pins(
    step: StepToPlan, constraints: Constraints, mesh: DeviceMesh
) -> Iterator[tuple[int, Pin]]:
    call, arguments = step.call, step.program.arguments
    paths = [slash_path(path) for path in call.paths]
    decided: set[int] = set()
    for pattern, sharding in constraints.shardings.items():
        label = f"shardings[{pattern!r}]"
        for k in matched(pattern, paths, "shardings"):
            if k not in decided and sharding is not None:
                place = f"{paths[k]} (pattern {pattern!r})"
                layout = _layout(sharding, call.shapes[k].shape, mesh, place)
                yield arguments[k], Pin(label, layout)
            decided.add(k)
    for pattern in constraints.forbid_replicated:
        label = f"forbid_replicated[{pattern!r}]"
        positions = matched(pattern, paths, "forbid_replicated")
        divisible = [
            k
            for k in positions
            if any(
                candidate.axes_used for candidate in enumerate_shardings(call.shapes[k].shape, mesh)
            )
        ]
        if not divisible:
            raise ShardingConflictError(
                f"forbid_replicated={pattern!r} matches {paths[positions[0]]} of shape "
                f"{call.shapes[positions[0]].shape}, which can only be replicated.",
                topic=topics.INDIVISIBLE,
                cause=f"No axis of the mesh {mesh.shape} divides one of its dimensions.",
            )
        for k in divisible:
            yield arguments[k], Pin(label, forbids_replicas=True)


def _hint_pins(
    step: StepToPlan, mesh: DeviceMesh, *, recomputes: bool, offloads: bool
) -> Iterator[tuple[int, Pin]]:
    program = step.program
    for value, all_placed in program.hints.items():
        for placed in all_placed:
            layout, hint = None, placed.hint
            if hint.sharding is not None:
                layout = _layout(hint.sharding, program.values[value].shape, mesh, placed.label)
            is_told = recomputes and (hint.keep or hint.recompute)
            again = hint.recompute if is_told else None
            on_host = hint.offload if offloads else None
            if layout is not None or again is not None or on_host is not None:
                yield value, Pin(placed.label, layout, again, offloads=on_host)


def constraint_pin(program: Program, value: int, mesh: DeviceMesh) -> Pin:
    """Returns the pin of a sharding constraint in the function. The pin has no layout if the plan's
    mesh lacks an axis."""
    eqn, shape = program.constraints[value], program.values[value].shape
    label = f"with_sharding_constraint at {jax_internals.source_line(eqn.source_info)}"
    return _soft_pin(label, constraint_spec(eqn), shape, mesh)


def _soft_pin(label: str, asked: Any, shape: tuple[int, ...], mesh: DeviceMesh) -> Pin:
    """Returns the pin of a sharding that may name another mesh than the plan's. The pin has no
    layout if the sharding cannot be expressed in the plan's axes."""
    try:
        return Pin(label, _layout(on_plan_mesh(asked, mesh), shape, mesh, label))
    except KiwiError:
        return Pin(label)


def _layout(
    given: Any, shape: tuple[int, ...], mesh: DeviceMesh, what: str
) -> tuple[tuple[int, ...] | None, ...]:
    """Returns the mesh axes of each dimension; None for a dimension that is `UNCONSTRAINED`.
    `what` names the value in errors."""
    spec = given.spec if isinstance(given, NamedSharding) else given
    open_ = [entry is PartitionSpec.UNCONSTRAINED for entry in spec]
    if any(open_):
        entries = (None if is_open else axes for is_open, axes in zip(open_, spec, strict=True))
        given = PartitionSpec(*entries)
    closed = to_tensor_sharding(given, shape, mesh, what)
    open_ += [False] * (len(shape) - len(open_))
    return tuple(None if is_open else dim for is_open, dim in zip(open_, closed.dims, strict=True))


def _agree(one: Pin, other: Pin) -> bool:
    pairs = zip(one.layout or (), other.layout or (), strict=False)
    is_cut_otherwise = any(
        None not in (axes, other_axes) and axes != other_axes for axes, other_axes in pairs
    )
    pairs = (one.recomputes, other.recomputes), (one.offloads, other.offloads)
    is_otherwise = any(set(pair) == {True, False} for pair in pairs)
    mixed = (one.recomputes, other.offloads), (other.recomputes, one.offloads)
    is_torn = any(again is not None and on_host for again, on_host in mixed)
    return not (is_cut_otherwise or is_otherwise or is_torn)


@dataclass(frozen=True, eq=False)
class _Check:
    """Checks that each pinned value has an option that agrees with its pins."""

    units: UnitGraph
    mesh: DeviceMesh
    kernels: KernelGraph
    pins: Pins
    offloads: Callable[[Unit], float] | None

    @functools.cached_property
    def _table(self) -> StrategyTable:
        return StrategyTable(self.kernels, self.mesh)

    def run(self) -> None:
        if not self.pins.values:
            return
        lifetimes = residencies(self.units, least_offloaded_bytes=self.offloads)
        for value in self.pins.values:
            if self.units.graph.program.values[value].producer is None:
                self._check_source(value)
                continue
            unit = self.units.units[self.units.producer[value]]
            if not self.pins.strategies(self._table, unit):
                raise self._no_strategy(value, unit)
            if not self.pins.residency(unit, lifetimes[unit.index]).options:
                raise self._no_residency(value, unit)

    def possible_constraints(self, dropped: frozenset[str]) -> dict[int, tuple[Pin, ...]]:
        """The function's own constraints, by value, together with the other pins of their values.
        A constraint is left out if the mesh lacks its axes, if it contradicts a pin, or if no
        strategy yields it."""
        possible: dict[int, tuple[Pin, ...]] = {}
        program = self.units.graph.program
        for value in program.constraints:
            pin, known = constraint_pin(program, value, self.mesh), self.pins.values.get(value, ())
            producer = self.units.producer.get(value)
            if pin.layout is None or producer is None or pin.label in dropped:
                continue
            trial, unit = Pins({value: (*known, pin)}), self.units.units[producer]
            if all(_agree(known_pin, pin) for known_pin in known) and trial.strategies(
                self._table, unit
            ):
                possible |= trial.values
        return possible

    def possible_arguments(
        self, asked: Mapping[int, Pin], dropped: frozenset[str]
    ) -> dict[int, tuple[Pin, ...]]:
        """The shardings that arguments ask for, by value, together with the other pins of their
        values. A sharding is left out if the mesh lacks its axes, or if it contradicts a pin."""
        possible: dict[int, tuple[Pin, ...]] = {}
        for value, pin in asked.items():
            known = self.pins.values.get(value, ())
            if pin.layout is None or pin.label in dropped:
                continue
            if all(_agree(known_pin, pin) for known_pin in known):
                shape = self.units.graph.program.values[value].shape
                trial = Pins({value: (*known, pin)})
                if trial.of_source(value, enumerate_shardings(shape, self.mesh)):
                    possible |= trial.values
        return possible

    def with_possible_offloads(
        self, pins: dict[int, tuple[Pin, ...]]
    ) -> dict[int, tuple[Pin, ...]]:
        """`pins`, with further pins to offload the values that the function's own checkpoint policy
        offloads, where the compiler can offload them."""
        possible = dict(pins)
        lifetimes = residencies(self.units, least_offloaded_bytes=self.offloads)
        for value in sorted(self.units.graph.program.user_offloads):
            producer, known = self.units.producer.get(value), possible.get(value, ())
            pin = Pin(POLICY, offloads=True)
            if producer is None or not all(_agree(known_pin, pin) for known_pin in known):
                continue
            unit, trial = self.units.units[producer], Pins({value: (*known, pin)})
            if trial.residency(unit, lifetimes[producer]).options:
                possible |= trial.values
        return possible

    def _check_source(self, value: int) -> None:
        """Checks the pins of an argument or constant, which is live throughout the step and is not
        computed."""
        pins = self.pins.values[value]
        told = [pin for pin in pins if pin.recomputes or pin.offloads]
        if told:
            action = "recompute" if told[0].recomputes else "offload"
            raise InvalidArgumentError(
                f"{told[0].label} asks to {action} an argument.",
                topic=topics.GIVEN_VALUE,
            )
        shape = self.units.graph.program.values[value].shape
        if not self.pins.of_source(value, enumerate_shardings(shape, self.mesh)):
            raise ShardingConflictError(
                f"{' and '.join(pin.label for pin in pins)} leave no sharding for an argument of "
                f"shape {shape}.",
                topic=topics.NO_SHARDING_LEFT,
            )

    def _no_strategy(self, value: int, unit: Unit) -> ShardingConflictError:
        position = unit.outputs.index(value)
        offered = (strategy.results[position] for strategy in self._table.all_of(unit))
        layouts = sorted(set(map(self.mesh.describe, offered)))
        labels = [pin.label for pin in self.pins.values[value] if pin.layout is not None]
        opcode = self.units.graph.opcode_of(unit.root)
        return ShardingConflictError(
            f"{' and '.join(labels)}: no sharding strategy of the operator ({opcode}, shape "
            f"{self.units.graph.program.values[value].shape}) yields that.",
            topic=topics.NO_STRATEGY,
            cause=" ".join(rule_exclusions(unit.rule, self.mesh)),
            suggestion="One of " + ", ".join(layouts) + ".",
        )

    def _no_residency(self, value: int, unit: Unit) -> InvalidArgumentError:
        offloaded = [pin.label for pin in self.pins.values[value] if pin.offloads]
        if offloaded:
            return InvalidArgumentError(
                f"{' and '.join(offloaded)} asks to offload what cannot be offloaded.",
                topic=topics.CANNOT_OFFLOAD,
            )
        labels = [pin.label for pin in self.pins.values[value] if pin.recomputes is not None]
        return InvalidArgumentError(
            f"{' and '.join(labels)} asks to recompute what cannot be recomputed.",
            topic=topics.CANNOT_RECOMPUTE,
            cause=why_not_recomputed(self.units, unit),
        )
