"""A call of the user's function: its arguments, their given shardings, its traced program."""
