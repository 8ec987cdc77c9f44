"""Simulated annealing on sequences of computations, compiled by numba."""
