"""Frameworks whose recipes Kiwi reads and writes. Each framework needs its own package to be
installed."""
