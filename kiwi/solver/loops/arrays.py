"""Frozen dataclasses of arrays that compiled loops take as one pointer.

numba splits a named tuple into seven values for each array, and passes them one by one to every
function that takes the tuple. For a `Network`, this would be most of the compiled code. A loop
instead gets the address of a table of addresses and lengths, and reads the entries that it uses.
"""

import functools
from dataclasses import fields
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    NativeValue,
    infer_getattr,
    lower_getattr_generic,
    models,
    register_model,
    unbox,
)
from numba.np.arrayobj import make_array, populate_array
from numba.np.numpy_support import from_dtype

_WORD = ir.IntType(64)
_LAYOUT = 1
"""The version of the table's layout. numba stores compiled loops by the names of their types, so a
changed layout needs a new version."""


class Arrays:
    """Base of frozen dataclasses whose fields are one-dimensional contiguous arrays, and integers.

    Loops may write into the arrays. The object must outlive the call of a loop.
    """

    def __post_init__(self) -> None:
        for value in self._values.values():
            assert not isinstance(value, np.ndarray) or (
                value.ndim == 1 and value.flags.c_contiguous
            )

    @property
    def _values(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(cast(Any, self))}

    @functools.cached_property
    def _words(self) -> np.ndarray:
        """Address and length of each array, value and 0 of each number, in the order of the fields;
        shape (fields, 2)."""
        pairs = [
            (value.ctypes.data, len(value)) if isinstance(value, np.ndarray) else (value, 0)
            for value in self._values.values()
        ]
        return np.array(pairs, dtype=np.int64)

    @functools.cached_property
    def address(self) -> int:
        """The address of the table that compiled loops read."""
        return self._words.ctypes.data

    @functools.cached_property
    def _numba_type_(self) -> types.Type:
        dtypes = ((name, getattr(value, "dtype", None)) for name, value in self._values.items())
        return _type_of(type(self).__qualname__, tuple(dtypes))

    def __getstate__(self) -> dict[str, Any]:
        return self._values  # The address is valid in this process only.


class _ArraysType(types.Type):
    """numba's type of a class of arrays.

    - `members`: for each field, its index in the table and its type.
    """

    def __init__(self, name: str, members: tuple[tuple[str, types.Type], ...]) -> None:
        self.members = {field: (k, field_type) for k, (field, field_type) in enumerate(members)}
        listed = ", ".join(f"{field}: {field_type}" for field, field_type in members)
        super().__init__(f"{name}/{_LAYOUT}({listed})")


@functools.cache
def _type_of(name: str, dtypes: tuple[tuple[str, np.dtype | None], ...]) -> _ArraysType:
    field_types = (
        (field, types.Array(from_dtype(dtype), 1, "C") if dtype is not None else types.int64)
        for field, dtype in dtypes
    )
    return _ArraysType(name, tuple(field_types))


register_model(_ArraysType)(models.OpaqueModel)


@infer_getattr
class _Members(AttributeTemplate):
    key = _ArraysType

    def generic_resolve(self, typ: _ArraysType, attr: str) -> types.Type | None:
        return typ.members[attr][1] if attr in typ.members else None


@lower_getattr_generic(_ArraysType)
def _read(context: Any, builder: Any, typ: _ArraysType, value: Any, attr: str) -> Any:
    """Lowers the read of a field: an array at its address, or a number. References to the array are
    not counted, since the object keeps it alive."""
    place, field_type = typ.members[attr]
    first, length = (_word(builder, value, 2 * place + k) for k in (0, 1))
    if not isinstance(field_type, types.Array):
        return first
    item = context.get_data_type(field_type.dtype)
    size = context.get_constant(types.intp, context.get_abi_sizeof(item))
    array = make_array(field_type)(context, builder)
    populate_array(
        array,
        data=builder.inttoptr(first, item.as_pointer()),
        shape=[length],
        strides=[size],
        itemsize=size,
        meminfo=None,
    )
    return array._getvalue()


def _word(builder: Any, value: Any, place: int) -> Any:
    """Lowers the read of a word of the table. The table does not change while a loop runs, so LLVM
    may read the word once."""
    table = builder.bitcast(value, _WORD.as_pointer())
    word = builder.load(cgutils.gep_inbounds(builder, table, place))
    word.set_metadata("invariant.load", builder.module.add_metadata([]))
    return word


@unbox(_ArraysType)
def _taken(typ: _ArraysType, value: Any, c: Any) -> NativeValue:
    address = c.pyapi.object_getattr_string(value, "address")
    pointer = c.pyapi.long_as_voidptr(address)
    c.pyapi.decref(address)
    return NativeValue(pointer, is_error=c.pyapi.c_api_error())
