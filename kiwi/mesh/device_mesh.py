"""The grid of devices that a step runs on, and the link along each of its axes."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from kiwi.errors import InvalidMeshError, NotEnoughDevicesError
from kiwi.mesh.hardware import Hardware, Link
from kiwi.mesh.hardware import hardware as find_hardware
from kiwi.mesh.profile_table import ProfileTable
from kiwi.mesh.sharding import TensorSharding, layout_text
from kiwi.mesh.topology import Topology

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, Mesh, PartitionSpec

_DEFAULT_NAMES = ("x", "y", "z")
# Layouts of a tensor grow with the factorial of the axes; three already give 481 at rank 6.
_MOST_AXES = 3


@dataclass(frozen=True)
class DeviceMesh:
    """An N-dimensional grid of equal devices.

    - `shape`: devices along each axis, major to minor; devices that are neighbours along the
      last axis are neighbours in the list of devices.
    - `axis_names`: one distinct name per axis.
    - `links`: for each axis, the link that a device sends over along that axis *when every
      device of the mesh sends along it at once*. A connection shared by the devices of a node
      is thus divided already.
    - `hardware`: the kind of device.
    - `device_order`: for each position, row-major, the index of its device in the list of
      devices that the mesh is laid over; None means 0, 1, ... See `kiwi.mesh.assignment`.
    - `topology`: the chips of TPUs, whose list of devices is in the order of their coordinates;
      None for others.
    - `table`: what was measured on such devices, priced before `hardware` and `links`; or None.

    At most three axes may be larger than 1; axes of size 1 are free and are never planned with.

    **Raises:** `InvalidMeshError` if the parts do not fit together.
    """

    shape: tuple[int, ...]
    axis_names: tuple[str, ...]
    links: tuple[Link, ...]
    hardware: Hardware
    device_order: tuple[int, ...] | None = None
    topology: Topology | None = None
    # Not hashed, since meshes are keys of caches and tables are long; still compared.
    table: ProfileTable | None = field(default=None, hash=False, repr=False)

    def __post_init__(self) -> None:
        _check_shape(self.shape)
        _check_names(self.axis_names, self.shape)
        if len(self.links) != len(self.shape):
            raise InvalidMeshError(
                f"A mesh of shape {self.shape} has {len(self.links)} links.",
                cause="There is one link per axis.",
                suggestion="DeviceMesh.create picks the links.",
            )
        if self.device_order is not None and sorted(self.device_order) != list(range(self.size)):
            raise InvalidMeshError(
                f"Device order {self.device_order} is no order of {self.size} devices.",
                suggestion="Each of 0, 1, ... once, or None.",
            )

    @classmethod
    def create(
        cls,
        shape: Sequence[int],
        hardware: Hardware | str,
        axis_names: Sequence[str] | None = None,
        topology: str | None = None,
    ) -> "DeviceMesh":
        """A mesh whose links follow from the hardware.

        The minor-most axes whose sizes multiply to at most `hardware.devices_per_node` lie
        inside a node, all others cross nodes. Without `devices_per_node` the last axis alone
        lies inside a node. Default names are the first of x, y, z.

        **Raises:** `InvalidMeshError` if shape and names make no mesh; `UnknownProfileError`
        if `hardware` is a name that the catalogue lacks.
        """
        shape = _check_shape(shape)
        if axis_names is None:
            axis_names = _default_names(shape)
        entry = find_hardware(hardware) if isinstance(hardware, str) else hardware
        links = _axis_links(shape, entry)
        chips = _topology(shape, entry, topology)
        return cls(shape, tuple(axis_names), links, entry, topology=chips)

    @classmethod
    def from_jax(cls, mesh: "Mesh | AbstractMesh", hardware: Hardware | str) -> "DeviceMesh":
        """The mesh of the same shape and axis names; raises as `create`."""
        names = tuple(mesh.axis_names)
        return cls.create(tuple(mesh.shape[name] for name in names), hardware, names)

    @property
    def size(self) -> int:
        """The number of devices."""
        return prod(self.shape)

    @cached_property
    def nontrivial_axes(self) -> tuple[int, ...]:
        """The axes of size above 1, in increasing order."""
        return tuple(axis for axis, size in enumerate(self.shape) if size > 1)

    def partition_spec(self, sharding: TensorSharding) -> "PartitionSpec":
        """The `PartitionSpec` of full rank that means the same as a sharding over this mesh."""
        from jax.sharding import PartitionSpec

        named = sharding.named(self.axis_names)
        return PartitionSpec(*(n if len(n) > 1 else next(iter(n), None) for n in named))

    def describe(self, sharding: TensorSharding) -> str:
        """A short text such as `[x, -, (y, z)]` of a sharding over this mesh."""
        return layout_text(sharding.named(self.axis_names))

    def abstract_mesh(self) -> "AbstractMesh":
        """A jax mesh without devices; its axes are `AxisType.Auto`."""
        from jax.sharding import AbstractMesh, AxisType

        # Auto, because sharding constraints on Explicit axes are an error in jax.
        types = (AxisType.Auto,) * len(self.shape)
        return AbstractMesh(self.shape, self.axis_names, axis_types=types)

    def jax_mesh(self, devices: Sequence[object] | None = None) -> "Mesh":
        """A jax mesh over the first `size` of `devices` (default: all of `jax.devices()`).

        They are laid out in `device_order`.

        **Raises:** `NotEnoughDevicesError` if there are fewer.
        """
        import jax
        import numpy as np
        from jax.sharding import AxisType, Mesh

        devices = jax.devices() if devices is None else list(devices)
        if len(devices) < self.size:
            raise NotEnoughDevicesError(
                f"A mesh of shape {self.shape} needs {self.size} devices; {len(devices)} given.",
                cause="The plan was made for a larger machine than this process sees.",
                suggestion="A smaller mesh_shape. To try the program on virtual CPU devices, call "
                f'jax.config.update("jax_num_cpu_devices", {self.size}) before the first use of '
                "jax, or set XLA_FLAGS=--xla_force_host_platform_device_count="
                f"{self.size}.",
            )
        if self.topology is not None:
            devices = self.topology.ordered(devices)
        chosen = [devices[index] for index in self.device_order or range(self.size)]
        grid = np.asarray(chosen, dtype=object).reshape(self.shape)
        return Mesh(grid, self.axis_names, axis_types=(AxisType.Auto,) * len(self.shape))


def _topology(shape: tuple[int, ...], hardware: Hardware, text: str | None) -> Topology | None:
    """The chips of TPUs: as the text says, or as few as will do."""
    wiring, count = hardware.interconnect, prod(shape)
    if wiring is None:
        if text is None:
            return None
        raise InvalidMeshError(
            f"topology={text!r} is given, and {hardware.name!r} is no TPU.",
            suggestion="profile='v5e' or another TPU.",
        )
    found = Topology.of_devices(count, wiring) if text is None else Topology.parse(text)
    if found.device_count(wiring) != count:
        raise InvalidMeshError(
            f"A mesh of shape {shape} has {count} devices, topology={text!r} has "
            f"{found.device_count(wiring)}.",
            suggestion="A mesh_shape of as many devices, or no topology.",
        )
    return found


def _axis_links(shape: tuple[int, ...], hardware: Hardware) -> tuple[Link, ...]:
    """The link of each axis; see `DeviceMesh.create`."""
    per_node = shape[-1] if hardware.devices_per_node is None else hardware.devices_per_node
    inside, in_node = 0, 1
    for size in reversed(shape):
        # Without devices_per_node exactly one axis is inside, even if others have size 1.
        if in_node * size > per_node or (hardware.devices_per_node is None and inside == 1):
            break
        inside, in_node = inside + 1, in_node * size
    # All devices of a node send across nodes at once: each gets its part of a shared port.
    sharers = in_node if hardware.inter_link_is_shared else 1
    crossing = hardware.inter_link.shared_by(sharers)
    return (crossing,) * (len(shape) - inside) + (hardware.intra_link,) * inside


def _check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape as a tuple; raises unless it is one to three positive sizes (1 is free)."""
    try:
        sizes = tuple(shape)
    except TypeError:
        sizes = ()
    # operator.index would take True for 1, which is a mistake more often than a wish.
    integers = all(hasattr(size, "__index__") and not isinstance(size, bool) for size in sizes)
    if not sizes or not integers or min(sizes) < 1:
        raise InvalidMeshError(
            f"Mesh shape {shape!r} is not a sequence of positive integers.",
            suggestion="mesh_shape=(2, 4) for 2 times 4 devices.",
        )
    if sum(size > 1 for size in sizes) > _MOST_AXES:
        raise InvalidMeshError(
            f"Mesh shape {sizes} has more than {_MOST_AXES} axes larger than 1.",
            cause="The layouts of a tensor grow with the factorial of the number of axes.",
            suggestion="Merge axes, for example (2, 2, 2, 2) into (4, 4).",
        )
    return tuple(int(size) for size in sizes)


def _default_names(shape: tuple[int, ...]) -> tuple[str, ...]:
    if len(shape) > len(_DEFAULT_NAMES):
        raise InvalidMeshError(
            f"There are no default names for the {len(shape)} axes of mesh shape {shape}.",
            suggestion="Pass axis_names=.",
        )
    return _DEFAULT_NAMES[: len(shape)]


def _check_names(names: Sequence[Hashable], shape: tuple[int, ...]) -> None:
    if len(names) != len(shape):
        raise InvalidMeshError(
            f"Axis names {tuple(names)} do not fit the mesh shape {shape}.",
            cause=f"{len(names)} names for {len(shape)} axes.",
            suggestion="One name per axis of the mesh.",
        )
    if any(not isinstance(name, str) or not name for name in names):
        raise InvalidMeshError(
            f"Axis names {tuple(names)} are not all non-empty strings.",
            suggestion='axis_names=("x", "y")',
        )
    if len(set(names)) != len(names):
        raise InvalidMeshError(
            f"Axis names {tuple(names)} are not distinct.",
            suggestion="A different name for each axis.",
        )
