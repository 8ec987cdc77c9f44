"""Readers of the compilers' output: buffers, collectives, shardings, name scopes."""
