"""Whether XLA:TPU accepts a step: the result of its memory check after the buffer assignment.

XLA:TPU writes `after_optimizations.hlo.pb` in either case. Then it raises RESOURCE_EXHAUSTED, or
writes `after_optimizations_after_buffer_assignment.hlo.pb` and starts to generate code. Code
generation takes minutes and is not waited for.
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
    """XLA:TPU's answer for a step.

    - `is_taken`: whether XLA:TPU goes on to generate code.
    - `said`: the first line of the error otherwise.
    - `seconds`: the time until the answer.
    """

    is_taken: bool
    said: str
    seconds: float


def verdict(step: Step) -> Verdict:
    """Returns the answer for a step, under the options of Kiwi's check. Raises as
    `Compiler.compile`."""
    return from_plain(TPU.answer(step, verdict_there), Verdict)


def verdict_there(step: ExportedStep, options: Mapping[str, Any], folder: str) -> Any:
    """Returns the answer from the process with the compiler."""
    compiler_options = {**TPU.asked(options).check_options, **dump_options(folder)}
    devices, started = devices_of(step.mesh), time.monotonic()
    compilation = ThreadPoolExecutor(1).submit(lambda: step.compile(devices, compiler_options))
    refusal = _said(compilation, folder)
    return to_plain(Verdict(not refusal, refusal, time.monotonic() - started))


def _said(compilation: Future[Any], folder: str) -> str:
    """Returns the compiler's refusal; empty once the compiler accepts the program."""
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
