"""Rules of XLA's compilers, one file each. The folders `cpu`, `gpu` and `tpu` hold the rules of one
compiler, this folder the rules that several compilers share."""
