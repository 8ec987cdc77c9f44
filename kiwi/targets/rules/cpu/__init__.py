"""Rules that hold for XLA:CPU only, one file each."""
