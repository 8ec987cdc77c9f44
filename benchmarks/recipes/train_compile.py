"""Compiles a configuration by MaxText's own `train_compile`, and reads its memory.

    python -m benchmarks.recipes.train_compile overrides.yml compile_topology=v5e-256 …

runs MaxText's command without its packages for data and storage. `memory_of` runs the command in a
separate process, which ends before code is generated.
"""

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kiwi.errors import CompileCheckError
from kiwi.frameworks import stand_ins
from kiwi.frameworks.maxtext import STAND_INS
from kiwi.xla.compile.dump import dumped
from kiwi.xla.read.buffer_assignment import BufferSizes, read_sizes
from kiwi.xla.tpu.compiler import TPU

ONE_HOST = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
"""Environment variables under which libtpu compiles without a TPU."""

QUIET = ("dataset_type=synthetic", "enable_checkpointing=False", "run_name=kiwi")


def memory_of(
    config: str | Path,
    topology: str,
    slices: int = 1,
    settings: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> BufferSizes:
    """Returns the bytes that the program allocates on one device.

    - `topology`: MaxText's name of the slice, such as "v5e-256".
    - `settings`: MaxText's settings, as "key=value".
    - `options`: options of XLA:TPU, as MaxText's setting `compile_xla_flags` takes them.

    **Raises:** `CompileCheckError` if MaxText or XLA refuses.
    """
    with tempfile.TemporaryDirectory(prefix="train-compile-") as folder:
        xla_options = {**(options or {}), "xla_dump_to": folder, "xla_dump_hlo_as_proto": True}
        xla_options |= {"xla_dump_hlo_as_text": True, "xla_dump_hlo_module_re": ".*train_step.*"}
        flags = " ".join(f"--{name}={value}" for name, value in xla_options.items())
        command = [sys.executable, "-m", __name__, str(config), *QUIET, *settings]
        command += [f"compile_topology={topology}", f"compile_topology_num_slices={slices}"]
        command.append(f"compile_xla_flags={flags}")
        with tempfile.TemporaryFile("w+") as printed:
            child = subprocess.Popen(
                command, env={**os.environ, **ONE_HOST}, stdout=printed, stderr=printed
            )
            try:
                dump = dumped(lambda: _finished(child, printed), folder, TPU.dump)
            finally:
                child.kill()
                child.wait()
        return read_sizes(dump.assignment, TPU.other_memories)


def peak_bytes(sizes: BufferSizes) -> int:
    """Returns the peak as `CompiledProgram.peak_bytes` counts it."""
    held_bytes = sizes.argument_bytes + sizes.output_bytes + sizes.temporary_bytes
    return held_bytes - sizes.alias_bytes


def _finished(child: "subprocess.Popen[Any]", printed: Any) -> None:
    if child.wait() > 0:
        printed.seek(0)
        raise CompileCheckError("train_compile failed.", cause=printed.read()[-2000:])


def main(arguments: Sequence[str]) -> None:
    """Runs MaxText's command."""
    stand_ins.install(STAND_INS)
    train_compile: Any = importlib.import_module("maxtext.trainers.pre_train.train_compile")
    train_compile.main(["", *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
