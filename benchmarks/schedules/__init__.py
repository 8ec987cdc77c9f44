"""The order of plans by predicted time, and by the simulated schedules of the compiled programs."""
