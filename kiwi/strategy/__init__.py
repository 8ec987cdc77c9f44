"""Sharding strategies and residencies of units, and the `Problem` that they make."""
