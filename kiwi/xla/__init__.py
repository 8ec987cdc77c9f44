"""What each of XLA's compilers does: its options and rules, how it compiles, how to read it."""
