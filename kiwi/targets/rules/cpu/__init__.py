"""Rules of XLA:CPU alone, one file each."""
