"""Rules that hold for XLA:TPU only, one file each."""
