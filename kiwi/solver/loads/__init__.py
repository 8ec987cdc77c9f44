"""Channels that work at once: problems with loads."""
