"""Experiments: one script per claim, results as JSON beside them."""
