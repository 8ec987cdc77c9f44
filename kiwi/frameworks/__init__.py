"""Frameworks whose recipes Kiwi reads and writes. Each needs its own package to be installed."""
