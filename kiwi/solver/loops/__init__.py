"""What compiled loops take, sort by, and are compiled in."""
