"""Planned steps against `jax.jit` as it is, measured on a CPU."""
