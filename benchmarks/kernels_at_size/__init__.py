"""Llama-3 8B with attention as one kernel, planned and compiled for the devices that it is for.

    python -m benchmarks.kernels_at_size [--out FILE.json] [--redo BEGINNING,BEGINNING]

Splash attention on 16 v5e with XLA:TPU, cuDNN's attention on 8 H100s with XLA:GPU. A row tells
whether the plan fits as compiled, how often the program calls the kernel, and whether any array of
it has a row and a column for every token, as scores of attention would.
"""
