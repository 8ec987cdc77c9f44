"""The time of the first plan on a new machine."""
