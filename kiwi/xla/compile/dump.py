"""The output that XLA writes for a program once its buffers are assigned, before it generates code.

Later passes do not change memory or communication: instructions, schedule and buffers are final,
and the machine code of a compile check is never run. Code generation takes most of the compilation,
and for GPUs before compute capability 7.5 it needs a `ptxas` that knows them.
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


@dataclass(frozen=True)
class Dump:
    """An optimised program: XLA's text, `HloModuleProto` and `BufferAssignmentProto`."""

    text: str
    module: bytes
    assignment: bytes

    @property
    def without_heap_trace(self) -> "Dump":
        """The same as a `jax.stages.Compiled` reports it: without the trace of XLA's heap."""
        assignment = parse("BufferAssignment", self.assignment)
        assignment.ClearField("heap_simulator_traces")
        return replace(self, assignment=assignment.SerializeToString())


def dump_options(folder: str) -> dict[str, Any]:
    """Compiler options with which XLA writes to a folder what `dumped` reads."""
    return {"xla_dump_to": folder, "xla_dump_hlo_as_proto": True, "xla_dump_hlo_as_text": True}


def dumped(compiling: Callable[[], object], folder: str, program: str) -> Dump:
    """The output that XLA writes to `folder` while `compiling` runs, returned as soon as it is
    complete.

    - `program`: the end of the files' names, e.g. "gpu_after_optimizations".

    The compilation goes on in a thread of its own, which ends with the process.

    **Raises:** the errors of `compiling`; `CompileCheckError` if it ends without output.
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
    """The output that XLA has written to a folder; raises `CompileCheckError` if there is none."""
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
    """The dump, if it is complete. XLA opens the text before it writes the messages, and writes the
    buffer assignment last."""
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
