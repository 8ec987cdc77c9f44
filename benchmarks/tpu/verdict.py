"""Whether XLA:TPU takes a step: what its memory check says, right after the buffer assignment.

It writes `after_optimizations.hlo.pb` in either case. Then it raises RESOURCE_EXHAUSTED, or writes
`after_optimizations_after_buffer_assignment.hlo.pb` and begins to generate code, which takes
minutes and is not waited for.
"""

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax.errors import JaxRuntimeError

from kiwi.codec import from_plain, to_plain
from kiwi.xla.compile.dump import dump_options
from kiwi.xla.step import ExportedStep, Step
from kiwi.xla.tpu.compiler import TPU, devices_of

REFUSED = "RESOURCE_EXHAUSTED"
_TAKEN = "*after_optimizations_after_buffer_assignment.hlo.pb"
_LOOK_AGAIN_SECONDS = 0.02


@dataclass(frozen=True)
class Verdict:
    """What XLA:TPU says of a step.

    - `is_taken`: whether it goes on to generate code; `said`: its first line otherwise.
    - `seconds`: until it said so.
    """

    is_taken: bool
    said: str
    seconds: float


def verdict(step: Step) -> Verdict:
    """Of a step, under the options of Kiwi's check; raises as `Compiler.compile`."""
    return from_plain(TPU.answer(step, verdict_there), Verdict)


def verdict_there(step: ExportedStep, options: Mapping[str, Any], folder: str) -> Any:
    """What the process with the compiler answers."""
    told = {**TPU.asked(options).check_options, **dump_options(folder)}
    devices, started = devices_of(step.mesh), time.monotonic()
    compilation = ThreadPoolExecutor(1).submit(lambda: step.compile(devices, told))
    said = _said(compilation, folder)
    return to_plain(Verdict(not said, said, time.monotonic() - started))


def _said(compilation: Future[Any], folder: str) -> str:
    """The compiler's refusal, empty once it takes the program."""
    while not any(Path(folder).glob(_TAKEN)):
        if compilation.done():
            try:
                compilation.result()
            except JaxRuntimeError as error:
                if REFUSED not in str(error):
                    raise
                return str(error).splitlines()[0]
            return ""
        wait([compilation], _LOOK_AGAIN_SECONDS)
    return ""
