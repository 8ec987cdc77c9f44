"""The parts of XLA's protocol buffers that Kiwi reads, declared by field number.

XLA reports a compiled module and its buffer assignment as serialised messages
(`xla/service/hlo.proto`). jaxlib contains no Python classes for them, so this module declares the
fields that Kiwi needs. Parsing skips all other fields. A star marks a repeated field. Field numbers
are part of XLA's serialisation and are never reused.
"""

import functools
import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
_DECLARED = re.compile("[=:]")
_MESSAGES = {
    # The parts of "Hlo" stay serialised, and are parsed where they are needed.
    "Hlo": "hlo_module=1:bytes buffer_assignment=3:bytes",
    "Location": "shape_index=3:int64* instruction_id=4:int64",
    "LogicalBuffer": "id=1:int64 size=2:int64 defined_at=3:Location",
    "BufferAlias": "source_buffer_id=1:int64 location=2:Location",
    "Assigned": "logical_buffer_id=1:int64 offset=2:int64 size=3:int64",
    "Allocation": (
        "size=2:int64 is_thread_local=3:bool is_entry_computation_parameter=5:bool "
        "parameter_number=6:int64 maybe_live_out=7:bool color=8:int64 assigned=9:Assigned* "
        "is_constant=12:bool"
    ),
    "HeapEvent": "kind=1:int64 buffer_id=2:int64 instruction_name=4:string",
    "HeapTrace": "events=1:HeapEvent*",
    "BufferAssignment": (
        "logical_buffers=1:LogicalBuffer* buffer_aliases=2:BufferAlias* "
        "buffer_allocations=3:Allocation* heap_simulator_traces=4:HeapTrace*"
    ),
    "Metadata": "op_name=2:string",
    "Instruction": (
        "name=1:string opcode=2:string metadata=7:Metadata tuple_index=13:int64 id=35:int64 "
        "operand_ids=36:int64* called_computation_ids=38:int64*"
    ),
    "Computation": "instructions=2:Instruction* id=5:int64 root_id=6:int64",
    "Sequence": "instruction_ids=1:int64*",
    "SequenceEntry": "key=1:int64 value=2:Sequence",
    "Schedule": "sequences=1:SequenceEntry*",
    "Module": "computations=3:Computation* entry_computation_id=6:int64 schedule=7:Schedule",
}


def parse(name: str, serialised: bytes) -> Any:
    """Parses a serialised message of the type `name` of `_MESSAGES`. XLA reports messages of the
    types "Hlo", "Module" and "BufferAssignment"."""
    message = message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"kiwi.xla.{name}"))()
    message.ParseFromString(serialised)
    return message


@functools.cache
def _pool() -> descriptor_pool.DescriptorPool:
    """Returns a separate pool of descriptors, so that other declarations of the same messages
    cannot clash with these."""
    file = descriptor_pb2.FileDescriptorProto(name="kiwi/xla.proto", package="kiwi.xla")
    file.syntax = "proto3"
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for declared in fields.split():
            _declare(message, *_DECLARED.split(declared))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)  # pyright: ignore[reportAttributeAccessIssue]
    return pool


def _declare(message: Any, field: str, number: str, declared: str) -> None:
    repeated, kind = declared.endswith("*"), declared.rstrip("*")
    label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
    added = message.field.add(name=field, number=int(number), label=label)
    scalar = getattr(_FIELD, f"TYPE_{kind.upper()}", None)
    if scalar is not None:
        added.type = scalar
    else:
        added.type = _FIELD.TYPE_MESSAGE
        added.type_name = f".kiwi.xla.{kind}"
