"""Solves problems with loads, in which channels work at the same time."""
