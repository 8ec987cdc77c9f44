"""Turns a solution into a JAX function that XLA compiles in the plan's order and layouts."""
