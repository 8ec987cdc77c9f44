"""The user's pins, which restrict a problem's options.

A pin fixes the layout or the residency of one value. It removes options and adds none.
`kiwi.problem.user_pins` checks beforehand that some are left.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kiwi.hlo.units import Unit
from kiwi.memory.residency import UnitResidency
from kiwi.mesh import TensorSharding
from kiwi.problem.strategies import ShardingStrategy
from kiwi.problem.strategy_table import StrategyTable


@dataclass(frozen=True)
class Pin:
    """The pins of one value.

    - `label`: its name in errors.
    - `layout`: for each dimension the mesh axes that cut it, None for an open dimension; None if
      the whole layout is open.
    - `recomputes`: whether the value is recomputed; None leaves the choice open.
    - `offloads`: whether the value goes to the host's memory; None leaves the choice open.
    - `forbids_replicas`: whether at least one mesh axis has to cut the value.
    """

    label: str
    layout: tuple[tuple[int, ...] | None, ...] | None = None
    recomputes: bool | None = None
    forbids_replicas: bool = False
    offloads: bool | None = None

    def allows(self, sharding: TensorSharding) -> bool:
        """Whether the pin permits a layout."""
        if self.forbids_replicas and not sharding.axes_used:
            return False
        wanted = self.layout or ()
        return all(
            wanted_axes is None or wanted_axes == axes
            for wanted_axes, axes in zip(wanted, sharding.dims, strict=False)
        )


@dataclass(frozen=True)
class Pins:
    """Pins by value index."""

    values: Mapping[int, tuple[Pin, ...]] = field(default_factory=dict)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of all pins, each once."""
        return tuple(dict.fromkeys(pin.label for pins in self.values.values() for pin in pins))

    def of_source(
        self, value: int, shardings: Iterable[TensorSharding]
    ) -> tuple[TensorSharding, ...]:
        """The layouts, among `shardings`, that the pins of argument `value` permit."""
        pins = self.values.get(value, ())
        return tuple(
            sharding for sharding in shardings if all(pin.allows(sharding) for pin in pins)
        )

    def strategies(self, table: StrategyTable, unit: Unit) -> tuple[ShardingStrategy, ...]:
        """The strategies of a unit that yield its results as pinned, without dominated ones.

        A dominating strategy may yield another layout than the pinned one. So strategies that agree
        with the pins are selected before dominated strategies are removed.
        """
        pins = [
            (k, pin) for k, output in enumerate(unit.outputs) for pin in self.values.get(output, ())
        ]
        if not any(pin.layout for _, pin in pins):
            return table.of(unit)
        allowed = [
            strategy
            for strategy in table.all_of(unit)
            if all(value_pin.allows(strategy.results[k]) for k, value_pin in pins)
        ]
        return table.undominated(unit, allowed)

    def residency(self, unit: Unit, residency: UnitResidency) -> UnitResidency:
        """`residency` with only the options that agree with the unit's pins."""
        pins = [pin for output in unit.outputs for pin in self.values.get(output, ())]
        options = residency.options
        for pin in pins:
            if pin.recomputes is not None:
                name = "recompute" if pin.recomputes else "keep"
                options = tuple(option for option in options if option.name == name)
            if pin.offloads is not None:
                options = tuple(
                    option for option in options if (option.fetch_at is not None) == pin.offloads
                )
        return replace(residency, options=options)

    def least_offloaded_bytes(self, unit: Unit, least: float) -> float:
        """The least bytes with which a unit's result may be offloaded: `least`, or 0 if the user
        asks to offload the result."""
        is_asked = any(
            pin.offloads for output in unit.outputs for pin in self.values.get(output, ())
        )
        return 0.0 if is_asked else least
