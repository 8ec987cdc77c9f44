"""The space of configurations that a search goes through."""

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from kiwi.configurations.configuration import Configuration
from kiwi.configurations.step_maker import PARAMETERS, StepMaker
from kiwi.errors import InvalidArgumentError
from kiwi.mesh import DeviceMesh, Hardware, ProfileTable
from kiwi.mesh.assignment import shapes_of
from kiwi.messages import topics
from kiwi.options import Options

Profile = str | Path | Hardware | ProfileTable
Shape = tuple[int, ...]
HOW_MANY = "devices=8, or meshes=[(2, 4), (8,)]."
"""The suggestion of the error for a search without devices."""


@dataclass(frozen=True)
class Space:
    """The space of configurations.

    - `devices`: the numbers of devices.
    - `meshes`: the mesh shapes; None for all shapes that differ, with at most `most_axes` axes.
    - `values`: the values of each of `PARAMETERS`; None for the default of the step.
    """

    devices: tuple[int, ...]
    meshes: tuple[Shape, ...] | None
    values: tuple[tuple[int, ...] | None, ...]
    most_axes: int = 3

    @staticmethod
    def of(
        devices: int | Sequence[int] | None,
        meshes: Sequence[Sequence[int]] | None,
        *values: Sequence[int] | None,
        most_axes: int = 3,
    ) -> "Space":
        """Returns the space that the caller describes.

        **Raises:** `InvalidArgumentError` if there are no devices, or if a value is not positive.
        """
        counts = (devices,) if isinstance(devices, int) else tuple(devices or ())
        shapes = None if meshes is None else tuple(tuple(shape) for shape in meshes)
        if not counts and not shapes:
            raise InvalidArgumentError(
                "There are no devices to search.", topic=topics.NO_DEVICES, suggestion=HOW_MANY
            )
        wanted = tuple(
            None if candidate is None else tuple(sorted(set(candidate))) for candidate in values
        )
        for name, numbers in zip(("devices", *PARAMETERS), (counts, *wanted), strict=True):
            wrong = [
                candidate
                for candidate in numbers or ()
                if isinstance(candidate, bool) or int(candidate) != candidate or candidate < 1
            ]
            if wrong or (numbers is not None and not numbers and name != "devices"):
                raise InvalidArgumentError(
                    f"{name}={list(numbers or ())} are not positive numbers, one at least.",
                    topic=topics.OUT_OF_RANGE,
                )
        if not 1 <= most_axes <= 3:
            raise InvalidArgumentError(
                f"most_axes={most_axes} is not 1, 2 or 3.", topic=topics.OUT_OF_RANGE
            )
        counts = counts or tuple(sorted({prod(mesh_shape) for mesh_shape in shapes or ()}))
        return Space(counts, shapes, wanted, most_axes)

    def configurations(
        self, maker: StepMaker, profiles: Mapping[str, Profile], options: Options
    ) -> tuple[Configuration, ...]:
        """All configurations, ordered by profile, devices and mesh.

        **Raises:** `InvalidArgumentError` if the step does not take a searched value, or needs a
        value that is not given.
        """
        values = self._values(maker)
        return tuple(
            Configuration(name, mesh, *chosen)
            for name, profile in profiles.items()
            for mesh in self._meshes(Options(**{**vars(options), "profile": profile, "mesh": None}))
            for chosen in itertools.product(*values)
        )

    def _values(self, maker: StepMaker) -> list[tuple[int | None, ...]]:
        needs = dict(maker.parameters())
        choices: list[tuple[int | None, ...]] = []
        for name, values in zip(PARAMETERS, self.values, strict=True):
            option = "batch_sizes" if name == "batch_size" else name
            if values is not None and name not in needs:
                raise InvalidArgumentError(
                    f"make_step has no parameter {name}, and {option}={list(values)} is given.",
                    topic=topics.MISSING_PARAMETER,
                    suggestion=f"def make_step(..., {name}), or no {option}.",
                )
            if values is None and needs.get(name, False):
                raise InvalidArgumentError(
                    f"make_step needs {name}, and no {option} is given.",
                    topic=topics.MISSING_OPTION,
                    suggestion=f"{option}=(8, 16, 32)"
                    if name == "batch_size"
                    else f"{option}=(1, 2, 4)",
                )
            choices.append((None,) if values is None else values)
        return choices

    def _meshes(self, options: Options) -> Iterator[Shape]:
        for count in self.devices:
            if self.meshes is None:
                yield from distinct_meshes(count, options, self.most_axes)
            else:
                yield from (shape for shape in self.meshes if prod(shape) == count)


def named_profiles(profiles: Sequence[Profile]) -> dict[str, Profile]:
    """Returns profiles by their names; raises `InvalidArgumentError` if two have the same name."""
    by_name = {_name(profile): profile for profile in profiles}
    if len(by_name) < len(profiles):
        raise InvalidArgumentError(
            f"Of profiles {', '.join(map(_name, profiles))} two have the same name.",
            topic=topics.SAME_PROFILE_NAME,
        )
    return by_name


def _name(profile: Profile) -> str:
    if isinstance(profile, ProfileTable):
        return profile.hardware.name
    return profile.name if isinstance(profile, Hardware) else str(profile)


def distinct_meshes(
    devices: int, options: Options, most_axes: int = 3
) -> tuple[tuple[int, ...], ...]:
    """Returns the mesh shapes with one to `most_axes` axes, shapes with fewer axes first.

    Among shapes that differ only in the order of equal axes, only the first is listed. Under a
    measured profile every order is listed, because measurements hold for one order of the axes.

    **Raises:** `InvalidMeshError` if the profile has no such number of devices.
    """
    table = options.table()
    shapes: dict[Hashable, tuple[int, ...]] = {}
    for shape in sorted(shapes_of(devices, most_axes), key=lambda shape: (len(shape), shape)):
        mesh = replace(options, mesh_shape=shape).device_mesh(table)
        shapes.setdefault(_signature(mesh), shape)
    return tuple(shapes.values())


def _signature(mesh: DeviceMesh) -> Hashable:
    """Returns a key that is equal for meshes whose collectives cost the same."""
    if mesh.table is not None:
        return mesh.shape
    if mesh.placement is None:
        links = (
            (link.bandwidth_bytes_per_second, link.latency_seconds, link.efficiency)
            for link in mesh.links
        )
        return tuple(sorted(zip(mesh.shape, links, strict=True)))
    parts = (
        tuple(sorted((part.dimension, part.size, part.stride) for part in axis))
        for axis in mesh.placement.axes
    )
    return tuple(sorted(zip(mesh.shape, parts, strict=True)))
