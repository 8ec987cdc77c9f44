"""XLA:TPU for Google's TPUs, which need not be attached."""
