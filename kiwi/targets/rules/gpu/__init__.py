"""Rules that hold for XLA:GPU only, one file each."""
