"""One call of the user's function: arguments, given shardings, constraints, traced program."""
