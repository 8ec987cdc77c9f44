"""Generated instances: half of them to tune the solver on, the other half only to measure it."""
