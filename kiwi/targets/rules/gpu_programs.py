"""What XLA:GPU does with a whole program: orders of products and host memory."""

from kiwi.targets.rule import Rule, stating

TRANSPOSED_PRODUCTS = Rule(
    name="gpu_transposed_products",
    does="What a matmul yields may be laid out in an order that cuBLAS does not write, unless the "
    "program says its order.",
    component="GpuLayoutAssignment",
    observed="jax 0.10.2, H100",
    evidence=("tests/emit",),
    states=stating(transposes_products=True),
)

OFFLOADING = Rule(
    name="gpu_offloading",
    does="Values behind a barrier are copied to the host and leave the device; not those that "
    "scans stack, whose elements come back in the wrong order (openxla/xla#46231).",
    component="HostOffloader",
    observed="jax 0.10.2, H100",
    evidence=("benchmarks/host_memory",),
    states=stating(offloads=True),
)
