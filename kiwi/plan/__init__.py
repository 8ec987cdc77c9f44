"""From a call to a `Plan`, and from a `Plan` back into `jax.jit`."""
