"""Small versions of public kinds of JAX training programs, as users bring them to Kiwi.

Each program stands for one kind (`Program.stands_for`) and takes 10 MiB to 2 GiB a device. A small
copy of the same structure runs on CPU devices. `python -m benchmarks.field` plans the programs and
records the predictions, the compiler's figures, and whether the numbers equal those of `jax.jit`.
"""
