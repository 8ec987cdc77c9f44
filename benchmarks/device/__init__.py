"""Planned steps beside `jax.jit` and `jax.checkpoint`, measured on one attached NVIDIA GPU.

Plans are made first, anywhere, with XLA:GPU's compiler alone; then they are run where the GPU is:

    python -m benchmarks.device.plans --out=plans          # on any machine
    python -m benchmarks.device --plans=plans              # on the machine with the GPU

Both machines need the same version of jax. Seconds are medians of many steps, memory is what the
allocator reports. What is written beside: Kiwi's prediction, the time of the compiled schedule as
simulated, and with `--traces` what each kernel took. Without a GPU it says so and exits with 0.
"""
