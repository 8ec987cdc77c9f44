"""Hardware whose programs XLA:CPU compiles, so that tests can run both planning and the compile
check."""

from dataclasses import replace

from benchmarks.hardware import priced_as

ON_CPU = priced_as("h100-sxm", "cpu")
"""Devices with the prices of an H100."""

WAITING_ON_CPU = replace(ON_CPU, interference=None)
"""The same devices, with no collective overlapping computation."""
