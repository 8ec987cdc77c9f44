"""XLA's compilers: one `Compiler` for each, found in `kiwi.xla.compilers`.

A backend's folder (`cpu`, `gpu`) has its options, its rules and its way to compile. What backends
share stands beside them: `rules`, `compile`, `read`. See docs/compilers.md for how to add one.
"""
