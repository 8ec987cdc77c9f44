"""Times of kernels that compilers state in the text of an optimised program.

The programs consist of functions to be timed, each in its own scope (`kiwi.profiling.by_compiler`):
`timed_scope(7)` names the scope of function 7. The time of a function is the sum over its
instructions.

XLA:TPU states the cycles of each fusion after it has generated code. XLA:GPU states microseconds on
request (`xla_gpu_collect_cost_model_stats`). For fusions they come from its model of kernels. For
matmuls and collectives they are interpolated in tables that were measured on GPUs of compute
capability 9.0 and later, and are named "sol".
"""

import re
from collections.abc import Callable

from kiwi.xla.read.hlo_text import Instruction, parse_module
from kiwi.xla.read.work import RUNS_NOTHING

_SCOPE = re.compile(r"timed_(\d+)\b")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_GPU_TIMES = re.compile(r'"exec_time_us":(?P<time>[\d.e+-]+),[^}]*"name":"(?P<model>[^"]*)"')
_OF_TABLES, _OF_KERNELS = "sol", ""
_GPU_MATMUL_MODEL = "experimental-gemm-cost-model"
"""The name of XLA:GPU's model of untuned tiles. Its estimate appears only on matmuls, beside the
one from the tables."""

_NO_KERNELS = RUNS_NOTHING | {
    "async-done",
    "all-gather-done",
    "all-reduce-done",
    "collective-permute-done",
}


def timed_scope(number: int) -> str:
    """Returns the name of the scope of function `number`."""
    return f"timed_{number}"


def tpu_cycles(text: str) -> dict[int, float]:
    """Returns the cycles that XLA:TPU states, by number of the function.

    - `text`: the text of the module after code generation.

    A function is left out if XLA:TPU states no cycles for one of its instructions.
    """

    def cycles(instruction: Instruction) -> float | None:
        match = _CYCLES.search(instruction.attributes)
        return None if match is None else float(match[1])

    return _sums(text, cycles)


def gpu_seconds(text: str) -> dict[int, float]:
    """Returns the seconds that XLA:GPU states, by number of the function.

    - `text`: the text of the optimised module.

    A function is left out if XLA:GPU states no time for one of its instructions.
    """

    def seconds(instruction: Instruction) -> float | None:
        stated = {
            match["model"]: match["time"] for match in _GPU_TIMES.finditer(instruction.attributes)
        }
        of_tables = _GPU_MATMUL_MODEL in stated or instruction.opcode != "fusion"
        stated_microseconds = stated.get(_OF_TABLES if of_tables else _OF_KERNELS)
        return None if stated_microseconds is None else 1e-6 * float(stated_microseconds)

    return _sums(text, seconds)


def _sums(text: str, stated: Callable[[Instruction], float | None]) -> dict[int, float]:
    module = parse_module(text)
    sums: dict[int, float | None] = {}
    for instruction in module.entry.instructions:
        scope = _SCOPE.search(instruction.attributes)
        if scope is None or instruction.opcode in _NO_KERNELS:
            continue
        if instruction.opcode == "async-start":
            instruction = module.computations[instruction.computation("calls")].root
        number, time = int(scope[1]), stated(instruction)
        sum_before = sums.get(number, 0.0)
        sums[number] = None if time is None or sum_before is None else sum_before + time
    return {number: time for number, time in sums.items() if time}
