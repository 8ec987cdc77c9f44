"""Regions of equations: loops, branches and manual computations; their work, memory and units."""
