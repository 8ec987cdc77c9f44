"""Rules of XLA:GPU alone, one file each."""
