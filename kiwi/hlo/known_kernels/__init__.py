"""Kernels that are known by name: their sharding rules, and how calls of them are recognised."""
