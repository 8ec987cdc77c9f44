"""Readers of XLA's output: buffers, collectives, schedules, work, shardings and name scopes."""
