"""What planning takes, beside what XLA takes to compile the same step."""
