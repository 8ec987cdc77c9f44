"""Devices and the links between them, by name, with public figures.

Peak figures are those of the vendors' data sheets. What a program reaches of them is stated
apart, as efficiencies between 0 and 1. Those are assumptions typical of large dense kernels,
not measurements; an entry built from them has `analytic=True`.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.resources import files

from kiwi.codec import from_plain
from kiwi.errors import InvalidArgumentError, UnknownProfileError
from kiwi.mesh.topology import Interconnect
from kiwi.messages import topics


@dataclass(frozen=True)
class Link:
    """The link of one device over one kind of connection, in one direction.

    - `bandwidth_bytes_per_second`: peak per device and direction.
    - `latency_seconds`: time of an empty message, alpha in the cost formulas.
    - `efficiency`: the part of the peak that collectives on long buffers reach.

    **Raises:** `InvalidArgumentError` if a figure is out of range.
    """

    bandwidth_bytes_per_second: float
    latency_seconds: float
    efficiency: float = 1.0

    def __post_init__(self) -> None:
        _check_positive("bandwidth_bytes_per_second", self.bandwidth_bytes_per_second)
        _check_fraction("efficiency", self.efficiency)
        if self.latency_seconds < 0:
            raise InvalidArgumentError(
                f"latency_seconds={self.latency_seconds} is negative.", topic=topics.HARDWARE
            )

    @property
    def sustained_bytes_per_second(self) -> float:
        """Peak times efficiency, beta in the cost formulas."""
        return self.bandwidth_bytes_per_second * self.efficiency

    def shared_by(self, devices: int) -> "Link":
        """The part of this link that each of `devices` gets when all of them send."""
        return Link(
            self.bandwidth_bytes_per_second / devices, self.latency_seconds, self.efficiency
        )


@dataclass(frozen=True)
class BackendTraits:
    """Properties of all devices of a backend that prices depend on.

    The rules of `kiwi.targets.rules` say why.

    - `gathers_first_dimension`: collectives gather and scatter only the first dimension of a
      buffer, so that another dimension is transposed first.
    - `copies_around_all_to_alls`: the buffer of an all-to-all is copied to the order in which it is
      split, or from the order in which it is joined.
    - `combined_bytes`: by kind of collective, the size up to which collectives that overlap with
      computation are combined.
    - `is_bound_by_bytes`: maps, sums and transposes in a kernel take the time of reading and
      writing, and functions are computed meanwhile.
    - `has_function_units`: a kernel multiplies matrices and computes functions at the same time.
    """

    gathers_first_dimension: bool = False
    copies_around_all_to_alls: bool = False
    combined_bytes: Mapping[str, int] = field(default_factory=dict, hash=False)
    is_bound_by_bytes: bool = True
    has_function_units: bool = False


@dataclass(frozen=True)
class Hardware:
    """One kind of device, with its links.

    - `flops_per_second`: dense peak rate by dtype name; see `peak_flops_per_second`.
    - `memory_bandwidth_bytes_per_second`, `memory_bytes`: of one device.
    - `intra_link`: between devices of one node. `inter_link`: between nodes. Its bandwidth is per
      device, or per node and shared by the node's devices if `inter_link_is_shared`.
    - `devices_per_node`: None lets the mesh define the nodes: its last axis lies inside a node,
      every other axis crosses nodes.
    - `kernel_launch_seconds`: overhead of one kernel.
    - `host_bandwidth_bytes_per_second`: between one device's memory and the host's, one way.
    - `devices_per_host`: the number of devices that share the host's memory; None if it is a
      node's.
    - `matmul_efficiency`, `bandwidth_efficiency`: the parts of the peak rates that large matmuls,
      and kernels bound by memory, reach.
    - `source`: the public documents with the figures.
    - `analytic`: True if from documents, False if measured on such a machine.
    - `interconnect`: how the chips of TPUs are connected; None for other devices.
    - `kernel_efficiency`: the part of the peak matmul rate that fused attention reaches.
      `convolution_efficiency`: that of convolutions; None if it is `matmul_efficiency`.
    - `interference`: the part of its time that communication costs although the device computes
      meanwhile; None if the device waits for it. `host_interference`: the same for copies between
      device and host, which take a small part of the device's bandwidth.
    - `backend`: jax's name for such devices, which determines the XLA compiler
      (`kiwi.targets.registry`).
    - `clock_hertz`: the clock of a TPU's cores, in which XLA:TPU counts; None if unknown.
    - `target_config`: XLA:GPU's description of the device (`GpuTargetConfigProto` as text), if the
      machine was asked; None means that of the catalogue, see `kiwi.xla.gpu.target_config`.

    **Raises:** `InvalidArgumentError` if a figure is out of range.
    """

    name: str
    description: str
    # Not hashed, since a dict cannot be; still compared.
    flops_per_second: Mapping[str, float] = field(hash=False)
    memory_bandwidth_bytes_per_second: float
    memory_bytes: int
    intra_link: Link
    inter_link: Link
    devices_per_node: int | None
    kernel_launch_seconds: float
    backend: str
    source: str
    analytic: bool = True
    inter_link_is_shared: bool = False
    matmul_efficiency: float = 0.75
    bandwidth_efficiency: float = 0.85
    target_config: str | None = None
    host_bandwidth_bytes_per_second: float = 16e9
    interconnect: Interconnect | None = None
    interference: float | None = None
    kernel_efficiency: float = 0.5
    devices_per_host: int | None = None
    clock_hertz: float | None = None
    host_interference: float = 0.05
    convolution_efficiency: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "flops_per_second", dict(self.flops_per_second))
        for dtype in ("float32", "float64"):
            if dtype not in self.flops_per_second:
                raise InvalidArgumentError(
                    f"Hardware {self.name!r} has no {dtype} rate.",
                    topic=topics.HARDWARE,
                    cause="Dtypes without a rate of their own fall back to float32 or float64.",
                )
        for dtype, rate in self.flops_per_second.items():
            _check_positive(f"flops_per_second[{dtype!r}]", rate)
        _check_positive("memory_bandwidth_bytes_per_second", self.memory_bandwidth_bytes_per_second)
        _check_positive("memory_bytes", self.memory_bytes)
        _check_positive("host_bandwidth_bytes_per_second", self.host_bandwidth_bytes_per_second)
        _check_fraction("matmul_efficiency", self.matmul_efficiency)
        _check_fraction("bandwidth_efficiency", self.bandwidth_efficiency)
        _check_fraction("kernel_efficiency", self.kernel_efficiency)
        if self.convolution_efficiency is not None:
            _check_fraction("convolution_efficiency", self.convolution_efficiency)
        for name in ("devices_per_node", "devices_per_host", "clock_hertz"):
            if getattr(self, name) is not None:
                _check_positive(name, getattr(self, name))

    def peak_flops_per_second(self, dtype: str, *, matmul: bool = True) -> float:
        """The dense peak rate for `dtype` (a numpy dtype name).

        A float32 matmul takes the "tf32" rate where there is one, because that is what
        `jax.lax.Precision.DEFAULT` means on such GPUs. A dtype without a rate of its own takes
        that of float64 if it is float64 or complex128 and that of float32 otherwise: it is then
        computed by the general units, not by matrix units.
        """
        if matmul and dtype == "float32" and "tf32" in self.flops_per_second:
            return self.flops_per_second["tf32"]
        if dtype in self.flops_per_second and (matmul or dtype in ("float32", "float64")):
            return self.flops_per_second[dtype]
        return self.flops_per_second["float64" if dtype == "complex128" else "float32"]

    def matmul_flops_per_second(self, dtype: str) -> float:
        """The rate that a large matmul of `dtype` reaches: peak times efficiency."""
        return self.peak_flops_per_second(dtype) * self.matmul_efficiency

    def convolution_flops_per_second(self, dtype: str) -> float:
        """The rate that a large convolution of `dtype` reaches."""
        if self.convolution_efficiency is None:
            return self.matmul_flops_per_second(dtype)
        return self.peak_flops_per_second(dtype) * self.convolution_efficiency

    def kernel_flops_per_second(self, dtype: str) -> float:
        """The rate that a fused attention kernel of `dtype` reaches."""
        return self.peak_flops_per_second(dtype) * self.kernel_efficiency

    @property
    def traits(self) -> BackendTraits:
        """The properties of all devices of its backend."""
        return BACKENDS.get(self.backend, BackendTraits())

    def combined_bytes(self, kind: str) -> int:
        """The size up to which the compiler merges background collectives of this kind; 0 if it
        does not."""
        return self.traits.combined_bytes.get(kind, 0) if self.overlapping_share else 0

    @property
    def overlapping_share(self) -> float:
        """The part of communication's time that costs nothing while the device computes."""
        return 0.0 if self.interference is None else 1.0 - self.interference

    @property
    def sustained_memory_bytes_per_second(self) -> float:
        """The rate at which a kernel bound by memory reads plus writes."""
        return self.memory_bandwidth_bytes_per_second * self.bandwidth_efficiency


def hardware(name: str) -> Hardware:
    """The catalogue's entry; raises `UnknownProfileError` if there is none with that name."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    raise unknown_profile(name, list(CATALOGUE))


def unknown_profile(name: str, known: Sequence[str]) -> UnknownProfileError:
    """The error for a name that is not among the `known` profiles."""
    close = get_close_matches(str(name).lower(), known, n=1, cutoff=0.4)
    return UnknownProfileError(
        f"There is no hardware profile {name!r}. Known: {', '.join(known)}.",
        suggestion=f"profile={close[0]!r}" if close else "One of the known names.",
    )


def _check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise InvalidArgumentError(f"{name}={value} must be positive.", topic=topics.HARDWARE)


def _check_fraction(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise InvalidArgumentError(
            f"{name}={value} must be above 0 and at most 1.", topic=topics.HARDWARE
        )


def _backends() -> Mapping[str, BackendTraits]:
    text = files("kiwi.mesh").joinpath("backends.toml").read_text(encoding="utf-8")
    return {name: from_plain(entry, BackendTraits) for name, entry in tomllib.loads(text).items()}


BACKENDS = _backends()
"""The traits of each backend, by jax's name. A backend that is not in `backends.toml` has the
default traits."""


def _catalogue() -> Mapping[str, Hardware]:
    text = files("kiwi.mesh").joinpath("catalogue.toml").read_text(encoding="utf-8")
    return {
        # TOML has no null.
        name: from_plain({"name": name, "devices_per_node": None, **entry}, Hardware, name=name)
        for name, entry in tomllib.loads(text).items()
    }


CATALOGUE = _catalogue()
"""The known devices by name. The figures and their sources are in `catalogue.toml`."""
