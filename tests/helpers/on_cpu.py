"""Hardware whose programs XLA:CPU compiles, so that tests see the whole loop of plan and check."""

from dataclasses import replace

from benchmarks.hardware import priced_as

ON_CPU = priced_as("h100-sxm", "cpu")
"""The prices of an H100."""

WAITING_ON_CPU = replace(ON_CPU, interference=None)
"""The same, with nothing behind computation."""
