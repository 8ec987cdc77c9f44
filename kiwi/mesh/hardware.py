"""Devices and the links between them, by name, with public figures.

Peak figures are those of the vendors' data sheets. What a program reaches of them is stated
apart, as efficiencies between 0 and 1. Those are assumptions typical of large dense kernels,
not measurements; an entry built from them has `analytic=True`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from kiwi.errors import InvalidArgumentError, UnknownProfileError

_TERA = 1e12
_GIGA = 1e9
_GIGABIT = 1e9 / 8
_MICRO = 1e-6


@dataclass(frozen=True)
class Link:
    """What one device can send over one kind of connection, in one direction.

    - `bandwidth_bytes_per_second`: peak per device and direction.
    - `latency_seconds`: time of one message of no length, alpha in the cost formulas.
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
            raise InvalidArgumentError(f"latency_seconds={self.latency_seconds} is negative.")

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
class Hardware:
    """One kind of device, with its links.

    - `flops_per_second`: dense peak rate by dtype name; see `peak_flops_per_second`.
    - `memory_bandwidth_bytes_per_second`, `memory_bytes`: of one device.
    - `intra_link`: between devices of one node. `inter_link`: between nodes; its bandwidth is
      per device, or per node and shared by the node's devices where `inter_link_is_shared`.
    - `devices_per_node`: None means that the nodes are as the mesh says: its last axis lies
      inside a node, every other axis crosses nodes.
    - `kernel_launch_seconds`: overhead of one kernel.
    - `host_bandwidth_bytes_per_second`: between one device's memory and the host's, one way.
    - `matmul_efficiency`, `bandwidth_efficiency`: the parts of the peak rates that large
      matmuls, and kernels bound by memory, reach.
    - `source`: the public documents that the figures come from.
    - `analytic`: True if from documents, False if measured on such a machine.
    - `platform`: "gpu" or "cpu": which of XLA's compilers makes its programs.
    - `target_config`: what XLA:GPU says of the device (`GpuTargetConfigProto` as text), where
      the machine was asked; None means that of the catalogue, see `kiwi.xla.target_config`.

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
    source: str
    analytic: bool = True
    inter_link_is_shared: bool = False
    matmul_efficiency: float = 0.75
    bandwidth_efficiency: float = 0.85
    target_config: str | None = None
    platform: str = "gpu"
    host_bandwidth_bytes_per_second: float = 16e9

    def __post_init__(self) -> None:
        object.__setattr__(self, "flops_per_second", dict(self.flops_per_second))
        if self.platform not in ("gpu", "cpu"):
            raise InvalidArgumentError(f"platform={self.platform!r} is neither 'gpu' nor 'cpu'.")
        for dtype in ("float32", "float64"):
            if dtype not in self.flops_per_second:
                raise InvalidArgumentError(
                    f"Hardware {self.name!r} has no {dtype} rate.",
                    cause="Dtypes without a rate of their own fall back to float32 or float64.",
                )
        for dtype, rate in self.flops_per_second.items():
            _check_positive(f"flops_per_second[{dtype!r}]", rate)
        _check_positive("memory_bandwidth_bytes_per_second", self.memory_bandwidth_bytes_per_second)
        _check_positive("memory_bytes", self.memory_bytes)
        _check_positive("host_bandwidth_bytes_per_second", self.host_bandwidth_bytes_per_second)
        _check_fraction("matmul_efficiency", self.matmul_efficiency)
        _check_fraction("bandwidth_efficiency", self.bandwidth_efficiency)
        if self.devices_per_node is not None:
            _check_positive("devices_per_node", self.devices_per_node)

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

    @property
    def sustained_memory_bytes_per_second(self) -> float:
        """The rate at which a kernel bound by memory reads plus writes."""
        return self.memory_bandwidth_bytes_per_second * self.bandwidth_efficiency


def hardware(name: str) -> Hardware:
    """The catalogue's entry.

    **Raises:** `UnknownProfileError` if there is none of that name.
    """
    if name in CATALOGUE:
        return CATALOGUE[name]
    known = ", ".join(CATALOGUE)
    close = get_close_matches(str(name).lower(), CATALOGUE, n=1, cutoff=0.4)
    raise UnknownProfileError(
        f"There is no hardware profile {name!r}. Known: {known}.",
        suggestion=f"profile={close[0]!r}" if close else "One of the known names.",
    )


def _check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise InvalidArgumentError(f"{name}={value} must be positive.")


def _check_fraction(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise InvalidArgumentError(f"{name}={value} must be above 0 and at most 1.")


# The H100 and H200 data sheets print rates "with sparsity"; dense rates are half of those.
_HOPPER_FLOPS_PER_SECOND = {
    "float64": 67 * _TERA,
    "float32": 67 * _TERA,
    "tf32": 494.5 * _TERA,
    "bfloat16": 989.5 * _TERA,
    "float16": 989.5 * _TERA,
    "int8": 1979 * _TERA,
    "float8_e4m3fn": 1979 * _TERA,
    "float8_e5m2": 1979 * _TERA,
}

# Latency of one step of a ring, over NVLink and over InfiniBand: the tuning model of NCCL
# (src/graph/tuning.cc, hardware latencies, ring algorithm, "simple" protocol).
_NVLINK_LATENCY_SECONDS = 3.4 * _MICRO
_NETWORK_LATENCY_SECONDS = 14 * _MICRO
# A round trip between virtual machines of one zone by TCP takes tens of microseconds.
_ETHERNET_LATENCY_SECONDS = 30 * _MICRO
# XLA's own cost model of GPU kernels (gpu_performance_model_base.h) counts as much.
_KERNEL_LAUNCH_SECONDS = 1 * _MICRO

_ENTRIES = (
    Hardware(
        name="v100-sxm2",
        description="NVIDIA Tesla V100 SXM2 16 GB; NVLink along the last mesh axis, and 32 "
        "Gbit/s of Ethernet per node along the others",
        # No matrix unit takes bfloat16, int8 or tf32: they fall back to float32.
        flops_per_second={"float64": 7.8 * _TERA, "float32": 15.7 * _TERA, "float16": 125 * _TERA},
        memory_bandwidth_bytes_per_second=900 * _GIGA,
        memory_bytes=16 * 10**9,
        host_bandwidth_bytes_per_second=16 * _GIGA,
        intra_link=Link(150 * _GIGA, _NVLINK_LATENCY_SECONDS, efficiency=0.85),
        inter_link=Link(32 * _GIGABIT, _ETHERNET_LATENCY_SECONDS, efficiency=0.85),
        inter_link_is_shared=True,
        devices_per_node=None,
        kernel_launch_seconds=_KERNEL_LAUNCH_SECONDS,
        matmul_efficiency=0.85,
        source="NVIDIA Tesla V100 data sheet (rates, memory, PCIe 3.0, NVLink 300 GB/s both "
        "directions together); Google Compute Engine network bandwidth, N1 with 16 vCPUs at "
        "2 Gbit/s each",
    ),
    Hardware(
        name="a100-sxm",
        description="NVIDIA A100 SXM 80 GB; NVSwitch in nodes of 8, one 200 Gbit/s InfiniBand "
        "port per GPU between nodes",
        flops_per_second={
            "float64": 19.5 * _TERA,
            "float32": 19.5 * _TERA,
            "tf32": 156 * _TERA,
            "bfloat16": 312 * _TERA,
            "float16": 312 * _TERA,
            "int8": 624 * _TERA,
        },
        memory_bandwidth_bytes_per_second=2039 * _GIGA,
        memory_bytes=80 * 10**9,
        host_bandwidth_bytes_per_second=32 * _GIGA,
        intra_link=Link(300 * _GIGA, _NVLINK_LATENCY_SECONDS, efficiency=0.8),
        inter_link=Link(200 * _GIGABIT, _NETWORK_LATENCY_SECONDS, efficiency=0.9),
        devices_per_node=8,
        kernel_launch_seconds=_KERNEL_LAUNCH_SECONDS,
        source="NVIDIA A100 data sheet (dense rates, memory, PCIe 4.0, NVLink 600 GB/s both "
        "directions together); NVIDIA DGX A100 data sheet (8 InfiniBand HDR ports for 8 GPUs)",
    ),
    Hardware(
        name="h100-sxm",
        description="NVIDIA H100 SXM 80 GB; NVSwitch in nodes of 8, one 400 Gbit/s InfiniBand "
        "port per GPU between nodes",
        flops_per_second=_HOPPER_FLOPS_PER_SECOND,
        memory_bandwidth_bytes_per_second=3350 * _GIGA,
        memory_bytes=80 * 10**9,
        host_bandwidth_bytes_per_second=64 * _GIGA,
        intra_link=Link(450 * _GIGA, _NVLINK_LATENCY_SECONDS, efficiency=0.8),
        inter_link=Link(400 * _GIGABIT, _NETWORK_LATENCY_SECONDS, efficiency=0.9),
        devices_per_node=8,
        kernel_launch_seconds=_KERNEL_LAUNCH_SECONDS,
        matmul_efficiency=0.65,
        source="NVIDIA H100 data sheet (half of the rates printed with sparsity; memory; PCIe 5.0; "
        "NVLink 900 GB/s both directions together); NVIDIA DGX H100 data sheet "
        "(8 NDR ports for 8 GPUs)",
    ),
    Hardware(
        name="h200-sxm",
        description="NVIDIA H200 SXM 141 GB; NVSwitch in nodes of 8, one 400 Gbit/s InfiniBand "
        "port per GPU between nodes",
        flops_per_second=_HOPPER_FLOPS_PER_SECOND,
        memory_bandwidth_bytes_per_second=4800 * _GIGA,
        memory_bytes=141 * 10**9,
        host_bandwidth_bytes_per_second=64 * _GIGA,
        intra_link=Link(450 * _GIGA, _NVLINK_LATENCY_SECONDS, efficiency=0.8),
        inter_link=Link(400 * _GIGABIT, _NETWORK_LATENCY_SECONDS, efficiency=0.9),
        devices_per_node=8,
        kernel_launch_seconds=_KERNEL_LAUNCH_SECONDS,
        matmul_efficiency=0.65,
        source="NVIDIA H200 data sheet (half of the rates printed with sparsity; memory; PCIe 5.0; "
        "NVLink 900 GB/s both directions together); NVIDIA DGX H200 data sheet "
        "(8 NDR ports for 8 GPUs)",
    ),
    Hardware(
        name="cpu",
        description="virtual devices of one host, which share its cores and its memory",
        flops_per_second={"float64": 0.025 * _TERA, "float32": 0.05 * _TERA},
        memory_bandwidth_bytes_per_second=10 * _GIGA,
        memory_bytes=4 * 10**9,
        host_bandwidth_bytes_per_second=10 * _GIGA,
        intra_link=Link(5 * _GIGA, 20 * _MICRO),
        inter_link=Link(5 * _GIGA, 20 * _MICRO),
        devices_per_node=2**16,  # One host, whatever the number of virtual devices.
        kernel_launch_seconds=5 * _MICRO,
        source="orders of magnitude for one or two server cores; no document",
        platform="cpu",
    ),
)

CATALOGUE: Mapping[str, Hardware] = {entry.name: entry for entry in _ENTRIES}
