"""The overhead of a planned call over a call of `jax.jit`."""
