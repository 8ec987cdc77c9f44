"""What the compiler made of a plan: memory and collectives, read from the compiled program."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kiwi.plan.buffers import CompiledMemory, memory_from_json, read_memory

COLLECTIVE_KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)

_ITEM_BITS = {"pred": 8, "token": 0, "c64": 64, "c128": 128}

_COLLECTIVE = re.compile(
    r"= (?P<type>.*?) (?P<kind>" + "|".join(COLLECTIVE_KINDS) + r")(?P<start>-start)?\("
)
_ARRAY = re.compile(r"(?P<dtype>[a-z]+\d*[a-z0-9]*)\[(?P<shape>[\d,]*)\]")
_GROUPS_LIST = re.compile(r"replica_groups=\{\{(?P<first>[\d,]*)\}")
_GROUPS_IOTA = re.compile(r"replica_groups=\[\d+,(?P<size>\d+)\]")


@dataclass(frozen=True)
class CollectiveUse:
    """How often one kind of collective occurs, and its bytes.

    `bytes` sums the larger buffer of one device over all occurrences: the result of an
    all-gather, the input of a reduce-scatter, the local buffer of the others.
    """

    count: int
    bytes: int


@dataclass(frozen=True)
class CompiledProgram:
    """Memory of one device and collectives of a compiled step.

    - `target`: what it was compiled for, e.g. "cpu".
    - `peak_bytes`: arguments + outputs + temporaries - aliased.
    - `compile_seconds`: wall time of the compilation.
    - `memory`: what is alive when; None where the compiler does not report its buffers.
    """

    target: str
    peak_bytes: int
    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    alias_bytes: int
    collectives: Mapping[str, CollectiveUse]
    compile_seconds: float
    memory: CompiledMemory | None = None

    @property
    def collective_bytes(self) -> int:
        """Bytes of all collectives together."""
        return sum(use.bytes for use in self.collectives.values())


def compiled_from_json(fields: Mapping[str, Any]) -> CompiledProgram:
    """The inverse of `dataclasses.asdict`, from parsed JSON."""
    uses = {kind: CollectiveUse(**use) for kind, use in fields["collectives"].items()}
    memory = None if fields["memory"] is None else memory_from_json(fields["memory"])
    return CompiledProgram(**{**fields, "collectives": uses, "memory": memory})


def read_compiled(compiled: Any, target: str, compile_seconds: float) -> CompiledProgram:
    """Reads a `jax.stages.Compiled`.

    `peak_memory_in_bytes` leaves temporaries out on CPU, so the peak is summed here.
    """
    stats = compiled.memory_analysis()
    argument_bytes = int(stats.argument_size_in_bytes)
    output_bytes = int(stats.output_size_in_bytes)
    temporary_bytes = int(stats.temp_size_in_bytes)
    alias_bytes = int(stats.alias_size_in_bytes)
    return CompiledProgram(
        target,
        argument_bytes + output_bytes + temporary_bytes - alias_bytes,
        argument_bytes,
        output_bytes,
        temporary_bytes,
        alias_bytes,
        read_collectives(compiled.as_text()),
        compile_seconds,
        _memory(compiled, stats),
    )


def _memory(compiled: Any, stats: Any) -> CompiledMemory | None:
    assignment = getattr(stats, "serialized_buffer_assignment_proto", b"")
    modules = compiled.runtime_executable().hlo_modules()
    if not assignment or len(modules) != 1:
        return None
    return read_memory(modules[0].as_serialized_hlo_module_proto(), assignment)


def read_collectives(hlo_text: str) -> dict[str, CollectiveUse]:
    """Counts the collectives of an optimised HLO module.

    One inside a loop counts once; an asynchronous one counts at its start.
    """
    found: dict[str, CollectiveUse] = {}
    for line in hlo_text.splitlines():
        match = _COLLECTIVE.search(line)
        if match is None:
            continue
        kind = match["kind"]
        size = _buffer_bytes(kind, match["type"], bool(match["start"]), line)
        use = found.get(kind, CollectiveUse(0, 0))
        found[kind] = CollectiveUse(use.count + 1, use.bytes + size)
    return found


def _buffer_bytes(kind: str, result_type: str, is_start: bool, line: str) -> int:
    arrays = [_array_bytes(m) for m in _ARRAY.finditer(result_type)]
    if is_start and kind in ("all-gather", "collective-permute"):
        # The result of these starts is (operands, results, contexts...).
        return max(arrays, default=0)
    total = sum(arrays)
    return total * _group_size(line) if kind == "reduce-scatter" else total


def _group_size(line: str) -> int:
    iota = _GROUPS_IOTA.search(line)
    if iota is not None:
        return int(iota["size"])
    groups = _GROUPS_LIST.search(line)
    return len(groups["first"].split(",")) if groups is not None else 1


def _array_bytes(match: re.Match[str]) -> int:
    count = math.prod(int(d) for d in match["shape"].split(",") if d)
    return count * _item_bits(match["dtype"]) // 8


def _item_bits(dtype: str) -> int:
    if dtype in _ITEM_BITS:
        return _ITEM_BITS[dtype]
    digits = re.search(r"\d+", dtype)
    return int(digits.group()) if digits is not None else 0
