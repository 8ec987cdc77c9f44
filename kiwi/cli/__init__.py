"""The `kiwi` command, with subcommands such as plan, explain, diff, sweep, verify and hardware."""

from kiwi.quiet import without_complaints


def main() -> int:
    """Runs the command `kiwi` and returns its exit code. Complaints of JAX's plugins at import are
    left out."""
    with without_complaints():
        from kiwi.cli.main import main as run
    return run()
