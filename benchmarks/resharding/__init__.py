"""Kiwi's predictions of reshardings against the programs that XLA compiles."""
