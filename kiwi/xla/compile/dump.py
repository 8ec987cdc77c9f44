"""XLA's dump of a program: the files that it writes after buffer assignment, before it generates
code.

At this point instructions, schedule and buffers are final, so that a compile check needs no machine
code. Code generation takes most of the time of a compilation. For GPUs before compute capability
7.5 it also needs a `ptxas` that supports them.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from kiwi.errors import CompileCheckError
from kiwi.messages import topics
from kiwi.xla.read.protos import parse

_LOOK_AGAIN_SECONDS = 0.02
"""The interval between two looks at the folder of a dump."""


@dataclass(frozen=True)
class Dump:
    """An optimised program as XLA dumps it.

    - `text`: XLA's text of the module.
    - `module`: the serialised `HloModuleProto`.
    - `assignment`: the serialised `BufferAssignmentProto`.
    """

    text: str
    module: bytes
    assignment: bytes

    @property
    def without_heap_trace(self) -> "Dump":
        """The dump without the trace of XLA's heap, as a `jax.stages.Compiled` reports it."""
        assignment = parse("BufferAssignment", self.assignment)
        assignment.ClearField("heap_simulator_traces")
        return replace(self, assignment=assignment.SerializeToString())


def dump_options(folder: str) -> dict[str, Any]:
    """Returns the compiler options with which XLA writes the files that `dumped` reads to
    `folder`."""
    return {"xla_dump_to": folder, "xla_dump_hlo_as_proto": True, "xla_dump_hlo_as_text": True}


def dumped(compiling: Callable[[], object], folder: str, program: str) -> Dump:
    """Runs `compiling`, and returns the dump that XLA writes to `folder` as soon as it is complete.

    The compilation continues in a separate thread, which ends with the process.

    - `compiling`: compiles a program with `dump_options(folder)`.
    - `program`: the common end of the names of the dump's files, e.g. "gpu_after_optimizations".

    **Raises:** the errors of `compiling`; `CompileCheckError` if it ends without a dump.
    """
    compilation = ThreadPoolExecutor(1).submit(compiling)
    has_ended = False
    while not has_ended:
        has_ended = compilation.done()
        dump = _read(folder, program)
        if dump is not None:
            return dump
        wait([compilation], _LOOK_AGAIN_SECONDS)
    compilation.result()
    return dump_in(folder, program)


def dump_in(folder: str, program: str) -> Dump:
    """Returns the dump that XLA has written to `folder`; `program` as in `dumped`.

    **Raises:** `CompileCheckError` if there is no complete dump.
    """
    dump = _read(folder, program)
    if dump is None:
        raise CompileCheckError(
            "XLA did not write the program that it compiled.",
            topic=topics.NO_DUMP,
            cause=f"{folder} holds no *{program}.hlo.pb.",
            suggestion="verify='cpu', or another version of jax and its plugin.",
        )
    return dump


def _read(folder: str, program: str) -> Dump | None:
    """Returns the dump in a folder; None if it is incomplete.

    XLA opens the file of the text before it writes the protocol buffers, and writes the buffer
    assignment last.
    """
    messages, texts = (
        list(Path(folder).glob(f"*{program}.{extension}")) for extension in ("hlo.pb", "txt")
    )
    if len(messages) != 1 or len(texts) != 1:
        return None
    try:
        hlo = parse("Hlo", messages[0].read_bytes())
    except DecodeError:
        return None
    text = texts[0].read_text()
    if not hlo.buffer_assignment or not text.rstrip().endswith("}"):
        return None
    return Dump(text, hlo.hlo_module, hlo.buffer_assignment)
