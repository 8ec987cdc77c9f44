"""Conversion of dataclasses to plain data for JSON and back, with cattrs.

A dataclass becomes an object with the fields' names as keys. Reading is strict: no text or truth
value is read as a number, and every number is finite. An error names the place, as in
`operators[3].seconds is None, not a finite number`.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeVar, get_origin

import cattrs
from cattrs.cols import homogenous_tuple_structure_factory
from cattrs.gen import make_dict_structure_fn

from kiwi.errors import InvalidArgumentError, KiwiError
from kiwi.messages import topics

_T = TypeVar("_T")
_MOST_ERRORS = 3


class _Unfit(ValueError):
    """A value that does not fit. The message follows the name of the value's place: "is None, not a
    finite number"."""


def _checked(fits: Callable[[Any], bool], wanted: str) -> Callable[[Any, Any], Any]:
    def read(value: Any, kind: Any) -> Any:
        if not fits(value):
            raise _Unfit(f"is {value!r:.80}, not {wanted}")
        return value

    return read


def _after(check: Callable[[Any, Any], Any], read: Callable[[Any, Any], Any]) -> Any:
    return lambda value, kind: read(check(value, kind), kind)


def converter(*, forbid_extra_keys: bool) -> cattrs.Converter:
    """Returns a new converter, to which further hooks may be added. `forbid_extra_keys`: whether
    unknown keys of an object are an error."""
    new_converter = cattrs.Converter()
    for kind, wanted in ((int, "a whole number"), (str, "a text"), (bool, "true or false")):
        exactly = _checked(lambda value, kind=kind: type(value) is kind, wanted)
        new_converter.register_structure_hook(kind, exactly)
    is_number = lambda value: type(value) in (int, float) and math.isfinite(value)  # noqa: E731
    new_converter.register_structure_hook(float, _checked(is_number, "a finite number"))
    is_list = _checked(lambda value: isinstance(value, list), "a list")
    is_object = _checked(lambda value: isinstance(value, dict), "an object")

    @new_converter.register_structure_hook_factory(lambda kind: get_origin(kind) is tuple)
    def lists(kind: Any, by: cattrs.Converter) -> Any:
        return _after(is_list, homogenous_tuple_structure_factory(kind, by))

    @new_converter.register_structure_hook_factory(dataclasses.is_dataclass)
    def objects(kind: Any, by: cattrs.Converter) -> Any:
        read = make_dict_structure_fn(kind, by, _cattrs_forbid_extra_keys=forbid_extra_keys)
        return _after(is_object, read)

    return new_converter


_PLAIN = converter(forbid_extra_keys=True)


def to_plain(value: Any, by: cattrs.Converter = _PLAIN) -> Any:
    """Returns a value as JSON's types: a dataclass as a dictionary, a tuple as a list."""
    return by.unstructure(value)


def from_plain(data: Any, kind: type[_T], by: cattrs.Converter = _PLAIN, name: str = "") -> _T:
    """Returns the value of type `kind` that `to_plain` converted to `data`.

    - `name`: the name of the data in errors.

    **Raises:** `InvalidArgumentError`, with the place, for data that is missing, unknown, of
    another type, or refused by the dataclass.
    """
    try:
        return by.structure(data, kind)
    except (cattrs.BaseValidationError, _Unfit, KiwiError) as error:
        messages = cattrs.transform_error(error, path=name, format_exception=_said)
        raise InvalidArgumentError(
            " ".join(map(_sentence, messages[:_MOST_ERRORS])), topic=topics.PLAIN_DATA
        ) from error


def _said(error: BaseException, kind: type | None) -> str:
    if isinstance(error, KiwiError):
        return f": {error.what}"
    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        return f" has unknown keys: {', '.join(sorted(error.extra_fields))}."
    if isinstance(error, KeyError):
        return " is missing."
    return f" {error}." if isinstance(error, _Unfit) else f" is not understood: {error}."


def _sentence(said: str) -> str:
    """Returns a sentence from cattrs' text, which names the place last:
    `... @ .operators[3].seconds`."""
    statement, _, place = said.rpartition(" @ ")
    place = place.removeprefix(".")
    return statement[2:] if statement[0] == ":" and not place else f"{place or 'It'}{statement}"
