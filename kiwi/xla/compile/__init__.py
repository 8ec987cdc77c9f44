"""Ways to compile that more than one compiler takes: another process, a stop at the dump."""
