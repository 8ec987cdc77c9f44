"""The account of memory: which buffer is alive when, and how large a heap XLA needs for them."""
