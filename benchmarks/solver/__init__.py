"""Benchmarks of the solvers: published contest instances, layered problems and GPT layers."""
