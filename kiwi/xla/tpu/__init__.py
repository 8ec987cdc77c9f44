"""XLA:TPU for Google's TPUs, without a TPU."""
