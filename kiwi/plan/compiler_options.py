"""What XLA is told when it compiles a plan: the same for the check and for the run."""

from typing import Any

from kiwi.plan.verify import CPU_COMPILER_OPTIONS

_SMALL_BYTES = 256 * 2**10

GPU_COMPILER_OPTIONS = {
    "xla_gpu_disable_async_collectives": "ALLCOLLECTIVES",
    **{
        f"xla_gpu_{kind}_combine_threshold_bytes": _SMALL_BYTES
        for kind in ("all_gather", "all_reduce", "reduce_scatter")
    },
}
"""Options of XLA:GPU under which it runs things when the plan means them to run.

- Asynchronous collectives start as early as they can. The scheduler then also leaves the
  matmuls of weight gradients, with the activations that they read, to the end of the step: peaks
  of an MLP, a vision transformer and a GPT on (2, 4) rose by 17, 31 and 21 %. The price is that
  collectives do not overlap with compute, as the plan's estimate assumes.
- Collectives of more than `_SMALL_BYTES` are not combined into one, which would hold the
  operands of all of them until the last is there.
"""


def compiler_options(platform: str) -> dict[str, Any] | None:
    """The options for a platform of jax, "cpu", "gpu" or "cuda"; None for any other."""
    if platform == "cpu":
        return dict(CPU_COMPILER_OPTIONS)
    if platform in ("gpu", "cuda"):
        return dict(GPU_COMPILER_OPTIONS)
    return None
