"""XLA:GPU for NVIDIA GPUs, which need not be attached."""
