"""Shared code of the compilers: a separate process, and a stop once the dump is written."""
