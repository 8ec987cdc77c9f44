"""Searches for the best configuration of large steps on many devices."""
