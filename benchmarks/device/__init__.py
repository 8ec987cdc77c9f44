"""Planned and `jax.checkpoint` variants of a GPT that fills one attached NVIDIA GPU, measured.

    python -m benchmarks.device --out benchmarks/device/results/device.json

Step time is the median of many runs, peak memory is what the allocator reports. Without a GPU it
says so and exits with 0.
"""
