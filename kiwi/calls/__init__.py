"""A call of the user's function: its arguments, given shardings and constraints."""
