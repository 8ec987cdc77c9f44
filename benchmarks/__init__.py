"""Benchmarks: timed comparisons, kept apart from the tests."""

import os

# What is timed or compared is made in this run.
os.environ["KIWI_PLAN_CACHE"] = "off"
