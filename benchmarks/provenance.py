"""The version of the code that a benchmark's figures were measured with."""

import subprocess
from pathlib import Path


def commit() -> str:
    """Returns the checked-out commit, followed by "-dirty" if files differ from it. Empty outside
    of a repository."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        described = subprocess.run(
            [*git, "--exclude=*"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return described.stdout.strip()
