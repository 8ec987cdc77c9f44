"""Figures of a compiled program, read from the text that XLA writes before it generates code."""

import re
from collections.abc import Mapping
from typing import Any

from kiwi.codec import from_plain, to_plain
from kiwi.mesh.topology import Interconnect, Topology
from kiwi.xla.compile.dump import Dump, dump_options, dumped
from kiwi.xla.compile.worker import answer_elsewhere
from kiwi.xla.gpu import compiler as gpu
from kiwi.xla.gpu.target_config import target_config
from kiwi.xla.read.buffer_assignment import read_sizes
from kiwi.xla.step import ExportedStep, Step
from kiwi.xla.tpu import compiler as tpu

Figures = dict[str, int]

_KERNELS = frozenset({"fusion", "copy", "custom-call", "dot", "convolution", "reduce", "transpose"})
_COLLECTIVES = frozenset(
    {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"}
)
_BITS = {"pred": 8, "bf16": 16}
_INSTRUCTION = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z\-]+)\((.*?)\)")
_ARRAY = re.compile(r"\b(pred|bf16|[a-z]+\d+)\[([0-9,]*)\]")
_MATMULS = re.compile(r" (?:dot|convolution)\(|__cublas|__cudnn")


def figures(step: Step, compiler: str) -> Figures:
    """Compiles a step for the mesh's hardware, in a process of its own.

    **Raises:** `CompileCheckError`.
    """
    if compiler == "cuda":
        options = {"target_config": target_config(step.mesh.hardware)}
        return answer_elsewhere(gpu_figures, step, "cuda", options)
    wiring = step.mesh.hardware.interconnect
    assert compiler == "tpu" and wiring is not None
    topology = Topology.of_devices(step.mesh.size, wiring)
    options = {"interconnect": to_plain(wiring), "topology": to_plain(topology)}
    return answer_elsewhere(tpu_figures, step, "tpu", options)


def gpu_figures(step: ExportedStep, options: Mapping[str, Any], folder: str) -> Figures:
    """What the process for XLA:GPU answers."""
    devices = gpu.compile_only_devices(options["target_config"], step.mesh.size)
    told = {**gpu.GPU.check_options, **dump_options(folder)}
    return _of_dump(dumped(lambda: step.compile(devices, told), folder, "gpu_after_optimizations"))


def tpu_figures(step: ExportedStep, options: Mapping[str, Any], folder: str) -> Figures:
    """What the process for XLA:TPU answers."""
    wiring = from_plain(options["interconnect"], Interconnect)
    devices = tpu.compile_only_devices(wiring, from_plain(options["topology"], Topology))
    told = {**tpu.TPU.check_options, **dump_options(folder)}
    return _of_dump(dumped(lambda: step.compile(devices, told), folder, "after_optimizations"))


def _of_dump(dump: Dump) -> Figures:
    sizes = read_sizes(dump.assignment)
    held_bytes = sizes.argument_bytes + sizes.output_bytes + sizes.temporary_bytes
    return {
        **of_text(dump.text),
        "temporary_bytes": sizes.temporary_bytes,
        "peak_bytes": held_bytes - sizes.alias_bytes,
    }


def of_text(text: str) -> Figures:
    """Kernels, their traffic and collectives of the entry computation, and matmuls of all."""
    sizes: dict[str, int] = {}
    kernels = traffic = collectives = 0
    for found in map(_INSTRUCTION.match, text[text.index("ENTRY") :].splitlines()):
        if found is None:
            continue
        name, shape, opcode, operands = found.groups()
        sizes[name] = _bytes(shape)
        if opcode in _KERNELS:
            read = (re.split(r"[ %]", each.strip())[-1] for each in operands.split(","))
            kernels += 1
            traffic += sizes[name] + sum(sizes.get(each, 0) for each in read)
        collectives += opcode.removesuffix("-start") in _COLLECTIVES
    matmuls = len(_MATMULS.findall(text))
    return {
        "kernels": kernels,
        "traffic_bytes": traffic,
        "collectives": collectives,
        "matmuls": matmuls,
    }


def _bytes(shape: str) -> int:
    total = 0
    for dtype, dims in _ARRAY.findall(shape):
        bits = _BITS.get(dtype) or int(re.sub(r"\D", "", dtype))
        count = 1
        for dim in filter(None, dims.split(",")):
            count *= int(dim)
        total += count * bits // 8
    return total
