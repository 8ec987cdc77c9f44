"""Arrays that compiled loops read."""
