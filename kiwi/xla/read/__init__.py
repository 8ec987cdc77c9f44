"""What every compiler writes, read: buffers, collectives, shardings, name scopes."""
