"""Searches that begin again, and what their solutions have in common."""
