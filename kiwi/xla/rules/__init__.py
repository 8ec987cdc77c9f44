"""What XLA's compilers do with a program, as far as memory and communication depend on it."""
