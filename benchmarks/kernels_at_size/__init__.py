"""Llama-3 8B with attention as one kernel, planned and compiled for the devices of the kernel.

    python -m benchmarks.kernels_at_size [--out FILE.json] [--redo BEGINNING,BEGINNING]

The kernels are splash attention on 16 v5e with XLA:TPU, and cuDNN's attention on 8 H100s with
XLA:GPU. A row says whether the compiled plan fits, how often the program calls the kernel, and
whether an array of the program has a row and a column for every token, like the scores of
attention.
"""
