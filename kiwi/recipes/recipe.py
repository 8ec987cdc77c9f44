"""A training recipe as data, and single changes of it."""

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
    """What a recipe says of a training step.

    - `mesh`: the devices along each mesh axis, by name, in their order, within one slice.
    - `slices`: the slices along mesh axes, by name. A missing axis has one. The whole axis has the
      product of both.
    - `logical_rules`: pairs (logical axis, mesh axes), in the order in which they apply.
    - `residencies`: "device", "remat" or "offload" by name of `checkpoint_name`. Values without a
      name, and names without a residency, are recomputed. None leaves the policies of the function.
    - `batch_size`: samples of one step on all devices. `microbatches`: the parts that they are cut
      into. None where the step does not say.
    - `flags`: flags of the compiler, kept for whoever runs the recipe. No price depends on them.
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
                own = MappingProxyType(dict(getattr(self, name)))
                object.__setattr__(self, name, own)
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
        """Devices of all slices."""
        return prod(self.axes.values())

    @property
    def slice_count(self) -> int:
        """The number of slices."""
        return prod(self.slices.values())

    @property
    def rules(self) -> dict[str, tuple[MeshAxes, ...]]:
        """The mesh axes of each logical axis. Several rules of one name are alternatives."""
        found: dict[str, tuple[MeshAxes, ...]] = {}
        for axis, cut in self.logical_rules:
            found[axis] = (*found.get(axis, ()), cut)
        return found

    def changes_to(self, other: "Recipe") -> Iterator["Change"]:
        """The single changes that lead from this recipe to another."""
        own, others = self.residencies or {}, other.residencies or {}
        for name in dict.fromkeys((*own, *others)):
            was, now = own.get(name, REMAT), others.get(name, REMAT)
            if was != now:
                changed = replace(self, residencies={**own, name: now})
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
        """The recipe with other rules of one logical axis, at the place of its first one."""
        rules = [rule for rule in self.logical_rules if rule[0] != axis]
        first = (k for k, rule in enumerate(self.logical_rules) if rule[0] == axis)
        place = next(first, len(rules))
        rules[place:place] = [(axis, cut) for cut in cuts]
        return replace(self, logical_rules=tuple(rules))

    def __str__(self) -> str:
        lines = [f"mesh {_mesh(self)}"]
        shown = {f.name: getattr(self, f.name) for f in fields(self)}
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
    - `was`, `now`: what the recipe says before and after. `changed`: the recipe after it.
    - `is_residency`: whether it changes the residency of a name.
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
    """Mesh axes in one form: a single one as text, none as None."""
    if cut is None or isinstance(cut, str):
        return cut or None
    found = tuple(cut)
    return None if not found else found[0] if len(found) == 1 else found


def _text(cuts: Sequence[MeshAxes]) -> str:
    shown = ("+".join(cut) if isinstance(cut, tuple) else cut or "-" for cut in cuts)
    return " or ".join(shown) or "no rule"


def _mesh(recipe: Recipe) -> str:
    axes = ", ".join(f"{axis}={n}" for axis, n in recipe.axes.items() if n > 1) or "one device"
    return axes if recipe.slice_count == 1 else f"{axes} on {recipe.slice_count} slices"
