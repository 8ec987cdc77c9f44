"""A training recipe as data, and the single changes between two recipes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import prod
from types import MappingProxyType
from typing import Any

from kiwi.errors import InvalidArgumentError
from kiwi.hlo.checkpoint_names import REMAT, check_residencies
from kiwi.messages import topics
from kiwi.plans.export.partition_specs import MeshAxes


@dataclass(frozen=True)
class Recipe:
    """The decisions of a recipe for a training step.

    - `mesh`: the number of devices along each mesh axis within one slice, by name, in order.
    - `slices`: the number of slices along mesh axes, by name. A missing axis has one slice. The
      size of the whole axis is the product of both numbers.
    - `logical_rules`: pairs (logical axis, mesh axes), in the order in which they apply.
    - `residencies`: "device", "remat" or "offload" by name of `checkpoint_name`. Values without a
      name, and names without a residency, are recomputed. None keeps the policies of the function.
    - `batch_size`: the samples of one step on all devices; None if the recipe does not say.
    - `microbatches`: the number of parts that the batch is cut into; None if the recipe does not
      say.
    - `flags`: flags of the compiler for whoever runs the recipe. No price depends on them.

    **Raises:** `InvalidArgumentError` for an empty mesh, a size below 1, slices along an unknown
    axis, or an unknown residency.
    """

    mesh: Mapping[str, int]
    slices: Mapping[str, int] = field(default_factory=dict)
    logical_rules: tuple[tuple[str, MeshAxes], ...] = ()
    residencies: Mapping[str, str] | None = None
    batch_size: int | None = None
    microbatches: int | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("mesh", "slices", "residencies", "flags"):
            if getattr(self, name) is not None:
                frozen = MappingProxyType(dict(getattr(self, name)))
                object.__setattr__(self, name, frozen)
        rules = tuple((axis, _axes(cut)) for axis, cut in self.logical_rules)
        object.__setattr__(self, "logical_rules", rules)
        check_residencies(self.residencies or {})
        sizes = {**self.mesh, **self.slices}
        wrong = next((f"{axis}={n}" for axis, n in sizes.items() if n < 1), None)
        unknown = next((axis for axis in self.slices if axis not in self.mesh), None)
        if wrong or unknown or not self.mesh:
            raise InvalidArgumentError(
                f"A recipe's mesh has {wrong or unknown or 'no axes'}.",
                topic=topics.RECIPE,
                suggestion='For example mesh={"fsdp": 256}, slices={"fsdp": 2}.',
            )

    @property
    def axes(self) -> dict[str, int]:
        """The size of each mesh axis over all slices."""
        return {axis: n * self.slices.get(axis, 1) for axis, n in self.mesh.items()}

    @property
    def device_count(self) -> int:
        """The number of devices of all slices."""
        return prod(self.axes.values())

    @property
    def slice_count(self) -> int:
        """The number of slices."""
        return prod(self.slices.values())

    @property
    def rules(self) -> dict[str, tuple[MeshAxes, ...]]:
        """The mesh axes of each logical axis. Several rules of one logical axis are
        alternatives."""
        rules_of_axis: dict[str, tuple[MeshAxes, ...]] = {}
        for axis, cut in self.logical_rules:
            rules_of_axis[axis] = (*rules_of_axis.get(axis, ()), cut)
        return rules_of_axis

    def changes_to(self, other: "Recipe") -> Iterator["Change"]:
        """Yields the single changes that together lead from this recipe to `other`."""
        residencies, other_residencies = self.residencies or {}, other.residencies or {}
        for name in dict.fromkeys((*residencies, *other_residencies)):
            was, now = residencies.get(name, REMAT), other_residencies.get(name, REMAT)
            if was != now:
                changed = replace(self, residencies={**residencies, name: now})
                yield Change(name, was, now, changed, is_residency=True)
        for axis in dict.fromkeys((*self.rules, *other.rules)):
            was, now = self.rules.get(axis, ()), other.rules.get(axis, ())
            if was != now:
                yield Change(axis, _text(was), _text(now), self._with_rule(axis, now))
        if (self.mesh, self.slices) != (other.mesh, other.slices):
            changed = replace(self, mesh=other.mesh, slices=other.slices)
            yield Change("mesh", _mesh(self), _mesh(other), changed)
        for name in ("batch_size", "microbatches"):
            was, now = getattr(self, name), getattr(other, name)
            if was != now:
                yield Change(name, str(was), str(now), replace(self, **{name: now}))

    def _with_rule(self, axis: str, cuts: Sequence[MeshAxes]) -> "Recipe":
        """Returns the recipe with other rules of one logical axis, at the place of its first
        rule."""
        rules = [rule for rule in self.logical_rules if rule[0] != axis]
        positions = (k for k, rule in enumerate(self.logical_rules) if rule[0] == axis)
        place = next(positions, len(rules))
        rules[place:place] = [(axis, cut) for cut in cuts]
        return replace(self, logical_rules=tuple(rules))

    def __str__(self) -> str:
        lines = [f"mesh {_mesh(self)}"]
        shown = {
            recipe_field.name: getattr(self, recipe_field.name) for recipe_field in fields(self)
        }
        for name in ("batch_size", "microbatches"):
            if shown[name] is not None:
                lines.append(f"{name.replace('_', ' ')} {shown[name]}")
        for name, residency in (self.residencies or {}).items():
            lines.append(f"{name}: {residency}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Change:
    """One change of a recipe.

    - `name`: a name of `checkpoint_name`, a logical axis, "mesh", "batch_size" or "microbatches".
    - `was`, `now`: the recipe's decision before and after the change, as text.
    - `changed`: the recipe after the change.
    - `is_residency`: whether the residency of a name changes.
    """

    name: str
    was: str
    now: str
    changed: Recipe
    is_residency: bool = False

    @property
    def imperative(self) -> str:
        """The change as an instruction."""
        if not self.is_residency:
            return f"change {self.name} from {self.was} to {self.now}"
        if self.was == "offload" and self.now == "device":
            return f"leave out offloading `{self.name}`"
        verb = {"device": "keep", "remat": "recompute", "offload": "offload"}[self.now]
        return f"{verb} `{self.name}`"


def _axes(cut: Any) -> MeshAxes:
    """Returns mesh axes in a normal form: one axis as text, several as a tuple, none as None."""
    if cut is None or isinstance(cut, str):
        return cut or None
    axes = tuple(cut)
    return None if not axes else axes[0] if len(axes) == 1 else axes


def _text(cuts: Sequence[MeshAxes]) -> str:
    shown = ("+".join(cut) if isinstance(cut, tuple) else cut or "-" for cut in cuts)
    return " or ".join(shown) or "no rule"


def _mesh(recipe: Recipe) -> str:
    axes = ", ".join(f"{axis}={n}" for axis, n in recipe.axes.items() if n > 1) or "one device"
    return axes if recipe.slice_count == 1 else f"{axes} on {recipe.slice_count} slices"
