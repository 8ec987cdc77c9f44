"""What a planned call costs beside one of `jax.jit`."""
