"""XLA:CPU, which compiles for virtual devices on any machine."""
