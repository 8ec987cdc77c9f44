"""Rules of XLA:TPU alone, one file each."""
