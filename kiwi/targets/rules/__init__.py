"""Rules of XLA, one file each: here those of several compilers, in folders those of one."""
