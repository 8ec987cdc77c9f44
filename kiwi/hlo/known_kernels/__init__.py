"""Kernels that are known by name: their sharding rules, and the recognition of their calls."""
