"""The catalogue of devices and links, with public figures.

Peak figures come from the vendors' data sheets. Efficiencies between 0 and 1 state the part of a
peak that a program reaches. They are assumptions for large dense kernels, not measurements. An
entry that uses them has `analytic=True`.
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

    - `bandwidth_bytes_per_second`: the peak per device and direction.
    - `latency_seconds`: the time of an empty message, alpha in the cost formulas.
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
        """The peak times the efficiency, beta in the cost formulas."""
        return self.bandwidth_bytes_per_second * self.efficiency

    def shared_by(self, devices: int) -> "Link":
        """Returns the part of this link that each of `devices` gets while all of them send."""
        return Link(
            self.bandwidth_bytes_per_second / devices, self.latency_seconds, self.efficiency
        )


@dataclass(frozen=True)
class BackendTraits:
    """Properties of all devices of a backend that determine prices.

    The rules of `kiwi.targets.rules` give the reasons.

    - `gathers_first_dimension`: whether collectives gather and scatter only the first dimension of
      a buffer, so that a kernel must transpose any other dimension.
    - `copies_around_all_to_alls`: whether the buffer of an all-to-all is copied to the order in
      which it is split, or from the order in which it is joined.
    - `combined_bytes`: for each kind of collective, the size up to which the compiler combines
      collectives that overlap with computation.
    - `is_bound_by_bytes`: whether elementwise operators, sums and transposes in a kernel take the
      time of reading and writing, while functions are computed.
    - `has_function_units`: whether a kernel multiplies matrices and computes functions at the same
      time.
    """

    gathers_first_dimension: bool = False
    copies_around_all_to_alls: bool = False
    combined_bytes: Mapping[str, int] = field(default_factory=dict, hash=False)
    is_bound_by_bytes: bool = True
    has_function_units: bool = False


@dataclass(frozen=True)
class Hardware:
    """One kind of device, with its links.

    - `flops_per_second`: the dense peak rate by dtype name, see `peak_flops_per_second`.
    - `memory_bandwidth_bytes_per_second`, `memory_bytes`: the memory of one device.
    - `intra_link`: the link between devices of one node.
    - `inter_link`: the link between nodes. Its bandwidth is per device, or, if
      `inter_link_is_shared`, per node and shared by the node's devices.
    - `devices_per_node`: the number of devices of a node. None lets the mesh define the nodes: its
      last axis lies inside a node, and every other axis crosses nodes.
    - `kernel_launch_seconds`: the overhead of one kernel.
    - `host_bandwidth_bytes_per_second`: the bandwidth between the memories of one device and the
      host, one way.
    - `devices_per_host`: the number of devices that share the host's memory; None if it equals
      `devices_per_node`.
    - `matmul_efficiency`: the part of the peak rate that large matmuls reach.
    - `bandwidth_efficiency`: the part of the memory bandwidth that kernels bound by memory reach.
    - `source`: the public documents with the figures.
    - `analytic`: True if the figures come from documents, False if they were measured on such a
      machine.
    - `interconnect`: the connections of the chips of TPUs; None for other devices.
    - `kernel_efficiency`: the part of the peak matmul rate that fused attention reaches.
    - `convolution_efficiency`: the part of it that convolutions reach; None means
      `matmul_efficiency`.
    - `interference`: the part of its time that communication costs while the device computes; None
      if the device waits for communication.
    - `host_interference`: the same for copies between device and host, which take a small part of
      the device's bandwidth.
    - `backend`: JAX's name of the platform, which determines the XLA compiler
      (`kiwi.targets.registry`).
    - `clock_hertz`: the clock of a TPU's cores, in whose cycles XLA:TPU states times; None if
      unknown.
    - `target_config`: XLA:GPU's description of the device (`GpuTargetConfigProto` as text), as read
      from the machine; None means the catalogue's, see `kiwi.xla.gpu.target_config`.

    **Raises:** `InvalidArgumentError` if a figure is out of range.
    """

    name: str
    description: str
    # Not hashed, since a dict has no hash. It is compared, though.
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
        """Returns the dense peak rate in FLOP/s for `dtype`, a numpy dtype name.

        A float32 matmul takes the "tf32" rate if there is one, because such GPUs use TF32 for
        `jax.lax.Precision.DEFAULT`. A dtype without its own rate is computed by the general units.
        It takes the rate of float64 if it is complex128, and of float32 otherwise. Without
        `matmul`, only float32 and float64 have rates of their own.
        """
        if matmul and dtype == "float32" and "tf32" in self.flops_per_second:
            return self.flops_per_second["tf32"]
        if dtype in self.flops_per_second and (matmul or dtype in ("float32", "float64")):
            return self.flops_per_second[dtype]
        return self.flops_per_second["float64" if dtype == "complex128" else "float32"]

    def matmul_flops_per_second(self, dtype: str) -> float:
        """Returns the rate that a large matmul of `dtype` reaches: peak times efficiency."""
        return self.peak_flops_per_second(dtype) * self.matmul_efficiency

    def convolution_flops_per_second(self, dtype: str) -> float:
        """Returns the rate that a large convolution of `dtype` reaches."""
        if self.convolution_efficiency is None:
            return self.matmul_flops_per_second(dtype)
        return self.peak_flops_per_second(dtype) * self.convolution_efficiency

    def kernel_flops_per_second(self, dtype: str) -> float:
        """Returns the rate that a fused attention kernel of `dtype` reaches."""
        return self.peak_flops_per_second(dtype) * self.kernel_efficiency

    @property
    def traits(self) -> BackendTraits:
        """The properties of all devices of the backend."""
        return BACKENDS.get(self.backend, BackendTraits())

    def combined_bytes(self, kind: str) -> int:
        """Returns the size up to which the compiler combines background collectives of this kind; 0
        if it does not."""
        return self.traits.combined_bytes.get(kind, 0) if self.overlapping_share else 0

    @property
    def overlapping_share(self) -> float:
        """The part of its time that communication hides while the device computes."""
        return 0.0 if self.interference is None else 1.0 - self.interference

    @property
    def sustained_memory_bytes_per_second(self) -> float:
        """The rate in bytes read plus written that a kernel bound by memory reaches."""
        return self.memory_bandwidth_bytes_per_second * self.bandwidth_efficiency


def hardware(name: str) -> Hardware:
    """Returns the catalogue's entry for a name.

    **Raises:** `UnknownProfileError` if there is none.
    """
    if name in CATALOGUE:
        return CATALOGUE[name]
    raise unknown_profile(name, list(CATALOGUE))


def unknown_profile(name: str, known: Sequence[str]) -> UnknownProfileError:
    """Returns the error for a name that is not among the `known` profiles."""
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
"""The traits of each backend, by JAX's name. A backend that `backends.toml` lacks has the default
traits."""


def _catalogue() -> Mapping[str, Hardware]:
    text = files("kiwi.mesh").joinpath("catalogue.toml").read_text(encoding="utf-8")
    return {
        # TOML has no null.
        name: from_plain({"name": name, "devices_per_node": None, **entry}, Hardware, name=name)
        for name, entry in tomllib.loads(text).items()
    }


CATALOGUE = _catalogue()
"""The known devices by name. The figures and their sources are in `catalogue.toml`."""
