"""Targets: for each of XLA's compilers its rules (`Rule`), and its `Compiler` with the options."""
