"""XLA's compilers: one `Compiler` for each, found in `kiwi.xla.compilers`.

A backend's folder (`cpu`, `gpu`, `tpu`) has its options and its way to compile. `compile` and
`read` are common to all. The behaviour of the compilers is described in `kiwi.targets`.
"""
