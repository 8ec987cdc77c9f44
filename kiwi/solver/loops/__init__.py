"""Arrays, sorting and compilation for compiled loops."""
