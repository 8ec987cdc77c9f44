"""XLA's compilers: one `Compiler` for each backend, listed in `kiwi.xla.compilers`.

The packages `cpu`, `gpu` and `tpu` hold the options of a backend and its way to compile. The
packages `compile` and `read` are common to all backends. `kiwi.targets` describes what the
compilers do with a program.
"""
