"""XLA:CPU, whose virtual devices exist on any machine."""
