"""Turns a solution into a JAX function that XLA compiles to the plan's order and layouts."""
