"""The time of planning, beside the time that XLA takes to compile the same step."""
