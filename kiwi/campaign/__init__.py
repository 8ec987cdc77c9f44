"""The state of one planning, the attempts made in it, and what each may spend."""
