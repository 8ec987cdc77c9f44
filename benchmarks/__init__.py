"""Benchmarks: measurements and comparisons, separate from the tests."""

import os

# A benchmark measures plans of its own run, and none from the cache of plans.
os.environ["KIWI_PLAN_CACHE"] = "off"
