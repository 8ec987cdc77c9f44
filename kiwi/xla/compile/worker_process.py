"""The process that compiles one step: `python -m kiwi.xla.compile.worker_process`.

The process reads the name of a folder from its standard input. The folder holds the request and the
exported step, see `kiwi.xla.compile.worker`. The process writes its result to the same folder.
"""

import json
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from jax import export

from kiwi.codec import from_plain
from kiwi.mesh import DeviceMesh
from kiwi.xla import compilers as compilers  # Every answer needs them: imported while idle.
from kiwi.xla.compile.worker import EXPORTED, REQUEST, RESULT
from kiwi.xla.step import ExportedStep


def main(folder: str) -> None:
    """Runs the function that the request in `folder` names, and writes its result there as
    JSON."""
    request = json.loads(Path(folder, REQUEST).read_text())
    step = _step(request, Path(folder, EXPORTED)) if "mesh" in request else None
    module, function = request["answer"]
    answer = getattr(import_module(module), function)(step, request["options"], folder)
    Path(folder, RESULT).write_text(json.dumps(answer))


def _step(request: Mapping[str, Any], path: Path) -> ExportedStep:
    exported = export.deserialize(bytearray(path.read_bytes()))
    mesh = from_plain(request["mesh"], DeviceMesh)
    return ExportedStep(exported, mesh, tuple(request["donated"]))


if __name__ == "__main__":
    given = sys.stdin.readline().strip()
    # An empty read means that the starting process closed the pipe without a task.
    if given:
        main(given)
        sys.stderr.flush()
        # XLA may still be generating code that is never run.
        os._exit(0)
