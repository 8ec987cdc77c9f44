"""Benchmarks of the solvers: published contest instances, and layered problems."""
