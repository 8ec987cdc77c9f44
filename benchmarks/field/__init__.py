"""Public kinds of JAX training programs, rebuilt small: what people bring to Kiwi.

Each program stands for one kind (`Program.stands_for`), at 10 MiB to 2 GiB a device, with a small
copy of the same structure that runs on CPU devices. `python -m benchmarks.field` plans them and
keeps what was predicted, what the compiler made of it, and whether the numbers are those of
`jax.jit`.
"""
