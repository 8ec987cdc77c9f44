"""Calls of `python -m kiwi plan`, in this process: what they print, and how they exit."""

import contextlib
import io
import runpy
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock

from benchmarks.goldens.cells import GAP, TIME_LIMIT_SECONDS, without_clocks, without_folder
from benchmarks.goldens.models import MESH_SHAPE

COMMAND = "command"
"""What stands in the place of a planner."""

CALLS: Mapping[str, Sequence[str]] = {
    "plan": (),
    "too small a budget": ("--budget", "64KiB"),
    "unknown planner": ("--planner", "no-such-planner"),
    "unknown profile": ("--profile", "no-such-profile"),
}
_FILE = "benchmarks/goldens/models.py"


def outcome(example: str, call: str) -> dict[str, Any]:
    """One of `CALLS` for an example: exit code, standard output and standard error."""
    arguments = [
        "kiwi",
        "plan",
        f"{_FILE}:{example}_step",
        *("--args", f"{example}_arguments"),
        *("--mesh", ",".join(map(str, MESH_SHAPE))),
        *("--gap", str(GAP), "--time-limit", str(TIME_LIMIT_SECONDS), "--donate", "0"),
        *CALLS[call],
    ]
    code, out, error = _run(arguments)
    return {
        "outcome": f"exit {code}",
        "clock": False,
        "ended": "proof",
        "arguments": " ".join(arguments),
        "out": without_clocks(out).splitlines(),
        "error": without_folder(error).splitlines(),
    }


def _run(arguments: list[str]) -> tuple[Any, str, str]:
    """Exit code, standard output, standard error. A process of its own would import jax anew."""
    out, error = io.StringIO(), io.StringIO()
    code: Any = None
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(error),
        mock.patch.object(sys, "argv", arguments),
        mock.patch.object(sys, "path", list(sys.path)),
    ):
        try:
            runpy.run_module("kiwi", run_name="__main__")
        except SystemExit as exit_:
            code = exit_.code
    return code, out.getvalue(), error.getvalue()
