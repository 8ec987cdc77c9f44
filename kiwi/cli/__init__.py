"""The `kiwi` command, with subcommands such as plan, explain, diff, sweep, verify and hardware."""

import sys

from kiwi.errors import NotEnoughDevicesError
from kiwi.messages import topics
from kiwi.quiet import without_complaints

FAILED = 4
"""The exit code of an error that Kiwi explains."""


def main() -> int:
    """Runs the command `kiwi` and returns its exit code. Complaints of JAX's plugins at import are
    left out."""
    try:
        with without_complaints():
            import jax  # noqa: F401
    except ValueError as error:  # JAX reads its environment variables when it is imported.
        reason = " ".join(str(error).split()).rstrip(".")
        told = NotEnoughDevicesError(
            f"jax cannot be imported: {reason}.",
            topic=topics.NO_BACKEND,
            cause="An environment variable has a value that jax does not know.",
            suggestion="Correct or unset the variable.",
        )
        print("kiwi: error:", " ".join(str(told).split("\n")), file=sys.stderr)
        return FAILED
    with without_complaints():
        from kiwi.cli.main import main as run
    return run()
