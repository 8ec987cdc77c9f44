"""The order of plans by predicted time, and by the simulated schedule of what was compiled."""
