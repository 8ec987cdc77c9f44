"""What XLA:GPU is told when it compiles a plan."""

GPU_COMPILER_OPTIONS = {"xla_gpu_disable_async_collectives": "ALLCOLLECTIVES"}
"""Options of XLA:GPU under which it runs things when the plan means them to run.

Asynchronous collectives start as early as they can, and what they wait for and yield is held
the longer: at 55 % of the free peak on (2, 4), plans of an MLP, a GPT and an encoder–decoder peak
11, 12 and 9 % above the prediction with them, 4, -1 and 0 % without
(`experiments/gpu_options.py`). The price is that collectives do not overlap with compute, which
the plan's estimate does not count on.
"""

GPU_CHECK_OPTIONS = {**GPU_COMPILER_OPTIONS, "xla_gpu_autotune_level": 0}
"""Of a check: nothing is timed on a device, so kernels are not tuned. Convolutions get no
workspace, which the tuned program may ask for."""
