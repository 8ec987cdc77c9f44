"""The grid of devices on which a step runs, and the link along each axis of the grid."""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from kiwi.errors import InvalidMeshError, NotEnoughDevicesError
from kiwi.mesh.hardware import Hardware, Link
from kiwi.mesh.hardware import hardware as find_hardware
from kiwi.mesh.placement import Connection, Dimension, Placement, dimensions_of, placement_of
from kiwi.mesh.profile_table import ProfileTable
from kiwi.mesh.sharding import TensorSharding, layout_text
from kiwi.mesh.topology import Interconnect, Topology, have_coordinates
from kiwi.mesh.torus import best_placement
from kiwi.messages import topics

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, Mesh, PartitionSpec

_DEFAULT_NAMES = ("x", "y", "z")
# The number of shardings of a tensor grows with the factorial of the number of axes.
_MOST_AXES = 3


@dataclass(frozen=True)
class DeviceMesh:
    """An N-dimensional grid of equal devices.

    - `shape`: the number of devices along each axis, major to minor. Neighbours along the last axis
      are neighbours in the list of devices.
    - `axis_names`: one distinct name per axis.
    - `links`: for each axis, the link over which a device sends along the axis *while every device
      of the mesh sends along it*. A connection that the devices of a node share is divided already.
    - `hardware`: the kind of device.
    - `device_order`: for each position, row-major, the index of its device in the list of devices;
      None means 0, 1, ... See `kiwi.mesh.assignment`.
    - `topology`: the chips of TPUs; None for other devices. It orders the list of devices by their
      coordinates.
    - `placement`: the parts of the topology that each axis takes; None if there are none.
    - `table`: measurements on such devices, which take precedence over `hardware` and `links`; or
      None.

    At most three axes may be larger than 1. Axes of size 1 cost nothing, and no plan uses them.

    **Raises:** `InvalidMeshError` if the parts do not fit together.
    """

    shape: tuple[int, ...]
    axis_names: tuple[str, ...]
    links: tuple[Link, ...]
    hardware: Hardware
    # Not hashed: it is long, and prices do not depend on it.
    device_order: tuple[int, ...] | None = field(default=None, hash=False)
    topology: Topology | None = None
    placement: Placement | None = None
    # Not hashed: meshes are keys of caches, and tables are long. Tables are compared, though.
    table: ProfileTable | None = field(default=None, hash=False, repr=False)

    def __post_init__(self) -> None:
        checked_shape(self.shape)
        _check_names(self.axis_names, self.shape)
        if len(self.links) != len(self.shape):
            raise InvalidMeshError(
                f"A mesh of shape {self.shape} has {len(self.links)} links.",
                topic=topics.MESH_PARTS,
                cause="There is one link per axis.",
                suggestion="DeviceMesh.create picks the links.",
            )
        if self.device_order is not None and sorted(self.device_order) != list(range(self.size)):
            raise InvalidMeshError(
                f"Device order {self.device_order} is no order of {self.size} devices.",
                topic=topics.MESH_PARTS,
                suggestion="Each of 0, 1, ... once, or None.",
            )

    @classmethod
    def create(
        cls,
        shape: Sequence[int],
        hardware: Hardware | str,
        axis_names: Sequence[str] | None = None,
        topology: str | None = None,
        num_slices: int | None = None,
    ) -> "DeviceMesh":
        """Returns a mesh whose links follow from the hardware.

        The minor-most axes whose sizes multiply to at most `hardware.devices_per_node` lie inside a
        node; all other axes cross nodes. Without `devices_per_node` only the last axis lies inside
        a node. On TPUs the links follow from the best placement of the axes on `num_slices` slices
        of the `topology`, by default on as few and as compact slices as possible. The default names
        are x, y, z.

        **Raises:** `InvalidMeshError` if shape and names do not fit together, or the topology has
        another number of devices than the shape; `UnknownProfileError` if the catalogue lacks the
        name `hardware`.
        """
        shape = checked_shape(shape)
        names = _default_names(shape) if axis_names is None else _sequence_of_names(axis_names)
        entry = find_hardware(hardware) if isinstance(hardware, str) else hardware
        wiring, given = entry.interconnect, (topology, num_slices)
        if wiring is None:
            _check_no_topology(entry, *given)
            return cls(shape, names, _axis_links(shape, entry), entry)
        chips = _topology(shape, entry, wiring, *given)
        placement = best_placement(shape, dimensions_of(chips, wiring, entry))
        mesh = cls(shape, names, (entry.intra_link,) * len(shape), entry, None, chips)
        return mesh.placed(placement.device_order(mesh.dimensions), placement)

    @classmethod
    def from_jax(
        cls,
        mesh: "Mesh | AbstractMesh",
        hardware: Hardware | str,
        topology: str | None = None,
        num_slices: int | None = None,
    ) -> "DeviceMesh":
        """Returns the mesh with the shape and axis names of a JAX mesh, and with its order of
        devices if it has devices.

        **Raises:** as `create`.
        """
        from jax.sharding import AbstractMesh

        if not hasattr(mesh, "axis_names"):
            raise InvalidMeshError(
                f"mesh={mesh!r} is no mesh of JAX.",
                topic=topics.MESH,
                suggestion=f"Use mesh_shape={mesh!r} for a shape.",
            )
        names = tuple(mesh.axis_names)
        shape = tuple(mesh.shape[name] for name in names)
        made = cls.create(shape, hardware, names, topology, num_slices)
        wiring = made.hardware.interconnect
        if wiring is None or isinstance(mesh, AbstractMesh):
            return made
        given = list(mesh.devices.flat)
        if topology is None and have_coordinates(given):
            chips = Topology.around(given, wiring)
            if chips.device_count(wiring) == made.size:
                made = replace(made, topology=chips)
        assert made.topology is not None
        ranks = {device: rank for rank, device in enumerate(made.topology.ordered(given))}
        order = tuple(ranks[device] for device in given)
        return made.placed(order, placement_of(order, shape, made.dimensions))

    def placed(self, order: tuple[int, ...], placement: Placement | None) -> "DeviceMesh":
        """Returns the mesh with the devices of its topology in `order`, the given placement, and
        the links that follow from the placement."""
        links = [self.hardware.intra_link] * len(self.shape)
        for axis, parts in enumerate(placement.axes if placement else ()):
            if any(
                self.dimensions[part.dimension].connection is Connection.NETWORK for part in parts
            ):
                links[axis] = self.hardware.inter_link
        kept = None if order == tuple(range(self.size)) else order
        return replace(self, links=tuple(links), device_order=kept, placement=placement)

    @property
    def size(self) -> int:
        """The number of devices."""
        return prod(self.shape)

    @cached_property
    def nontrivial_axes(self) -> tuple[int, ...]:
        """The axes larger than 1, in increasing order."""
        return tuple(axis for axis, size in enumerate(self.shape) if size > 1)

    @cached_property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The dimensions of the topology (see `kiwi.mesh.placement`); empty without a topology."""
        if self.topology is None or self.hardware.interconnect is None:
            return ()
        return dimensions_of(self.topology, self.hardware.interconnect, self.hardware)

    @property
    def slice_shape(self) -> tuple[int, ...]:
        """The number of devices of one TPU slice along each axis; `shape` without a placement."""
        if self.placement is None:
            return self.shape
        networks = [
            k
            for k, dimension in enumerate(self.dimensions)
            if dimension.connection is Connection.NETWORK
        ]
        axes = zip(self.shape, self.placement.axes, strict=True)
        return tuple(
            size // prod(part.size for part in parts if part.dimension in networks)
            for size, parts in axes
        )

    @property
    def axis_texts(self) -> tuple[str, ...]:
        """The connection of each axis of TPUs in words, such as `ring of 16`; empty for other
        devices and for axes of one device."""
        if self.placement is None:
            return ("",) * len(self.shape)
        return self.placement.axis_texts(self.dimensions)

    def partition_spec(self, sharding: TensorSharding) -> "PartitionSpec":
        """Returns the `PartitionSpec` of full rank for a sharding over this mesh."""
        from jax.sharding import PartitionSpec

        named = sharding.named(self.axis_names)
        return PartitionSpec(
            *(names if len(names) > 1 else next(iter(names), None) for names in named)
        )

    def describe(self, sharding: TensorSharding) -> str:
        """Returns a sharding over this mesh as a short text such as `[x, -, (y, z)]`."""
        return layout_text(sharding.named(self.axis_names))

    def abstract_mesh(self) -> "AbstractMesh":
        """Returns a JAX mesh without devices, whose axes are `AxisType.Auto`."""
        from jax.sharding import AbstractMesh, AxisType

        # JAX raises an error for sharding constraints on Explicit axes.
        types = (AxisType.Auto,) * len(self.shape)
        return AbstractMesh(self.shape, self.axis_names, axis_types=types)

    def jax_mesh(self, devices: Sequence[object] | None = None) -> "Mesh":
        """Returns a JAX mesh over the first `size` of `devices`, by default of `jax.devices()`,
        laid out in `device_order`.

        **Raises:** `NotEnoughDevicesError` if there are fewer than `size`.
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


def axes_of_mesh(
    mesh: DeviceMesh, other: "Mesh | AbstractMesh"
) -> dict[Hashable, tuple[int, ...]] | None:
    """Returns, for each axis name of the JAX mesh `other`, the axes of `mesh` whose product it is.

    Both meshes number the same devices, the last axis fastest. An axis of size 8 may then be the
    product of two neighbouring axes of sizes 2 and 4. Returns None if an axis of `other` is no such
    product, if the meshes have different sizes, or if their devices are known to be in different
    orders.
    """
    if prod(other.axis_sizes) != mesh.size or not _is_in_order_of(mesh, other):
        return None
    free_axes = list(mesh.nontrivial_axes)
    axes: dict[Hashable, tuple[int, ...]] = {}
    for name, size in zip(other.axis_names, other.axis_sizes, strict=True):
        product_axes: list[int] = []
        while prod(mesh.shape[axis] for axis in product_axes) < size and free_axes:
            product_axes.append(free_axes.pop(0))
        if prod(mesh.shape[axis] for axis in product_axes) != size:
            return None
        axes[name] = tuple(product_axes)
    return axes


def _is_in_order_of(mesh: DeviceMesh, other: "Mesh | AbstractMesh") -> bool:
    """Whether the devices of `other` may be in the order of the positions of `mesh`. An abstract
    mesh gets the devices of the program in which it occurs."""
    from jax.sharding import AbstractMesh

    named_sizes = tuple(zip(mesh.axis_names, mesh.shape, strict=True))
    is_same = named_sizes == tuple(zip(other.axis_names, other.axis_sizes, strict=True))
    return is_same or isinstance(other, AbstractMesh) or mesh.device_order is None


def _check_no_topology(hardware: Hardware, text: str | None, slices: int | None) -> None:
    for option, value in (("topology", text), ("num_slices", slices)):
        if value is not None:
            raise InvalidMeshError(
                f"{option}={value!r} is given, and {hardware.name!r} is no TPU.",
                topic=topics.NOT_A_TPU,
            )


def _topology(
    shape: tuple[int, ...],
    hardware: Hardware,
    wiring: Interconnect,
    text: str | None,
    slices: int | None,
) -> Topology:
    """Returns the topology of the TPUs that `text` describes, by default the most compact one.
    `slices` is by default the smallest number of slices that are no larger than a pod."""
    count = prod(shape)
    if slices is not None and (slices < 1 or count % slices):
        raise InvalidMeshError(
            f"num_slices={slices} does not divide the {count} devices of a mesh of shape {shape}.",
            topic=topics.SLICES,
            suggestion="A mesh_shape of as many devices per slice, or no num_slices.",
        )
    if text is None:
        largest = hardware.devices_per_node or count
        fits = (
            slice_count
            for slice_count in range(1, count + 1)
            if count % slice_count == 0 and count // slice_count <= largest
        )
        return Topology.of_devices(count, wiring, next(fits) if slices is None else slices)
    topology = Topology.parse(text, 1 if slices is None else slices)
    if topology.device_count(wiring) != count:
        several, remainder = divmod(count, topology.device_count(wiring))
        given = f"topology={text!r}" + (f", num_slices={slices}" if slices else "")
        fits = several > 1 and not remainder
        raise InvalidMeshError(
            f"A mesh of shape {shape} has {count} devices, {given} has "
            f"{topology.device_count(wiring)}.",
            topic=topics.TOPOLOGY_SIZE,
            suggestion=f"num_slices={several * topology.slices}."
            if fits
            else "A mesh_shape of as many devices, or no topology.",
        )
    return topology


def _axis_links(shape: tuple[int, ...], hardware: Hardware) -> tuple[Link, ...]:
    """Returns the link of each axis, see `DeviceMesh.create`."""
    per_node = shape[-1] if hardware.devices_per_node is None else hardware.devices_per_node
    inside, in_node = 0, 1
    for size in reversed(shape):
        # Without devices_per_node exactly one axis is inside, even if the others have size 1.
        if in_node * size > per_node or (hardware.devices_per_node is None and inside == 1):
            break
        inside, in_node = inside + 1, in_node * size
    # All devices of a node send across nodes at the same time and divide a shared port.
    sharers = in_node if hardware.inter_link_is_shared else 1
    crossing = hardware.inter_link.shared_by(sharers)
    return (crossing,) * (len(shape) - inside) + (hardware.intra_link,) * inside


def _suggested_shape(shape: Any) -> str | None:
    """Returns how to write a shape that was given as a number or as text; None for anything
    else."""
    if isinstance(shape, bool) or not isinstance(shape, int | str):
        return None
    sizes = [int(digits) for digits in re.findall(r"\d+", str(shape))]
    if not sizes or min(sizes) < 1:
        return None
    axes = "one axis" if len(sizes) == 1 else f"{len(sizes)} axes"
    written = f"({sizes[0]},)" if len(sizes) == 1 else str(tuple(sizes))
    return f"Write mesh_shape={written} for a mesh of {axes}."


def checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape as a tuple. Raises `InvalidMeshError` if a size is no positive integer, or
    if more than three sizes exceed 1."""
    try:
        sizes = tuple(shape)
    except TypeError:
        sizes = ()
    # operator.index takes True for 1. A caller rarely means that.
    integers = all(hasattr(size, "__index__") and not isinstance(size, bool) for size in sizes)
    if not sizes or not integers or min(sizes) < 1:
        raise InvalidMeshError(
            f"Mesh shape {shape!r} is not a sequence of positive integers.",
            topic=topics.MESH,
            suggestion=_suggested_shape(shape),
        )
    if sum(size > 1 for size in sizes) > _MOST_AXES:
        raise InvalidMeshError(
            f"Mesh shape {sizes} has more than {_MOST_AXES} axes larger than 1.",
            topic=topics.TOO_MANY_AXES,
        )
    return tuple(int(size) for size in sizes)


def _default_names(shape: tuple[int, ...]) -> tuple[str, ...]:
    if len(shape) > len(_DEFAULT_NAMES):
        raise InvalidMeshError(
            f"There are no default names for the {len(shape)} axes of mesh shape {shape}.",
            topic=topics.AXIS_NAMES,
            suggestion="Pass axis_names=.",
        )
    return _DEFAULT_NAMES[: len(shape)]


def _sequence_of_names(names: Any) -> tuple[Any, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise InvalidMeshError(
            f"Axis names {names!r} are not a sequence of names.",
            topic=topics.AXIS_NAMES,
            suggestion=f"Write axis_names=({names!r},) for a mesh of one axis."
            if isinstance(names, str)
            else None,
        )
    return tuple(names)


def _check_names(names: Sequence[Hashable], shape: tuple[int, ...]) -> None:
    if len(names) != len(shape):
        raise InvalidMeshError(
            f"Axis names {tuple(names)} do not fit the mesh shape {shape}.",
            topic=topics.AXIS_NAMES,
            cause=f"{len(names)} names for {len(shape)} axes.",
            suggestion="One name per axis of the mesh.",
        )
    if any(not isinstance(name, str) or not name for name in names):
        raise InvalidMeshError(
            f"Axis names {tuple(names)} are not all non-empty strings.",
            topic=topics.AXIS_NAMES,
            suggestion='axis_names=("x", "y")',
        )
    if len(set(names)) != len(names):
        raise InvalidMeshError(
            f"Axis names {tuple(names)} are not distinct.",
            topic=topics.AXIS_NAMES,
            suggestion="A different name for each axis.",
        )
