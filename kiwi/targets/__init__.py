"""XLA's compilers: a target is a list of rules, a compiler and options."""
