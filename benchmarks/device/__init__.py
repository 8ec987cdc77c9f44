"""Planned steps beside `jax.jit` and `jax.checkpoint`, measured on one attached NVIDIA GPU.

Plans are made first, on any machine, with only XLA:GPU's compiler. They are then run on the machine
with the GPU:

    python -m benchmarks.device.plans --out=plans          # on any machine
    python -m benchmarks.device --plans=plans              # on the machine with the GPU

Both machines need the same version of jax. Seconds are medians of many steps, and memory is the
allocator's figure. Each row also holds Kiwi's prediction and the simulated time of the compiled
schedule; `--traces` adds the time of each kernel. Without a GPU the benchmark says so and exits
with 0.
"""
