"""What XLA's compilers do with a program: a target is a list of rules, a compiler and options."""
