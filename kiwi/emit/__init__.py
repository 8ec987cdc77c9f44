"""A solution of the planning problem as a JAX function."""
