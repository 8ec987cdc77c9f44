"""Planned steps against plain `jax.jit`, measured on a CPU."""
