"""The state of one planning, the attempts made in it, and the work that each may spend."""
