"""What a benchmark's figures were measured with."""

import subprocess
from pathlib import Path


def commit() -> str:
    """The commit that is checked out, with "-dirty" behind it if files differ from it.

    Empty outside of a repository.
    """
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        told = subprocess.run([*git, "--exclude=*"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return told.stdout.strip()
