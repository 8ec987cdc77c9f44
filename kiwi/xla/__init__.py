"""XLA's compilers: one `Compiler` for each, found in `kiwi.xla.compilers`.

A backend's folder (`cpu`, `gpu`) has its options and its way to compile. What backends share stands
beside them: `compile`, `read`. What the compilers do with a program is `kiwi.targets`.
"""
