"""The `kiwi` command: plan, explain, diff, sweep, verify, hardware."""

from kiwi.quiet import without_complaints


def main() -> int:
    """The command `kiwi`. Complaints of jax's plugins at import are left out."""
    with without_complaints():
        from kiwi.cli.main import main as run
    return run()
