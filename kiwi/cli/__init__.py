"""The `kiwi` command: plan, explain, diff, sweep, verify, hardware."""
