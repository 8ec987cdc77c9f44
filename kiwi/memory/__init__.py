"""The account of memory: the live range of each buffer, and the size of the heap that XLA needs."""
