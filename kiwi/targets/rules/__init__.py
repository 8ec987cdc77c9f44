"""Rules of XLA, one file each."""
