"""Reshardings as Kiwi foresees them against those that XLA compiles."""
