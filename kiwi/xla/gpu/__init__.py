"""XLA:GPU for NVIDIA GPUs, attached or only described."""
