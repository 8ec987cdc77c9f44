"""Memory sizes and durations as text."""

import numbers
import re

from kiwi.errors import InvalidSizeError
from kiwi.messages import topics

_UNIT_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SHORT_UNITS = ("k", "m", "g", "t", "ki", "mi", "gi", "ti")
"""Units of other programs, which may mean powers of 10 or of 2."""

_SIZE = re.compile(r"\s*(?P<sign>-?)\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-zA-Z]*)\s*")
_SHARE = re.compile(r"\s*(?P<percent>\d+(?:\.\d+)?)\s*%\s*")
_MOST_BYTES = 2.0**62
"""Larger sizes are cut to this one, which no memory reaches."""

LEAST_WITHOUT_UNIT = 2**20
"""A smaller size in bytes is written as an `int`, or as text with its unit. A text or a `float`
without a unit and below this size is as a rule a number of GiB."""


def parse_size(size: int | float | str) -> int:
    """Returns the bytes of `size`, which is a number of bytes, or text such as "16GiB", "40GB" or
    "1.5 GiB".

    **Raises:** `InvalidSizeError` if the size cannot be read or is not positive, or if a text or a
    `float` without a unit is below `LEAST_WITHOUT_UNIT`.
    """
    if isinstance(size, str):
        size_bytes, has_unit = _parse_text(size)
    elif isinstance(size, bool) or not isinstance(size, numbers.Real) or size != size:
        raise InvalidSizeError(f"{size!r} is not a memory size.", topic=topics.SIZE_UNREADABLE)
    else:
        size_bytes, has_unit = size, isinstance(size, numbers.Integral)
    if size_bytes <= 0 or (has_unit and size_bytes < 1):
        raise InvalidSizeError(
            f"A memory size of {size!r} is not positive.", topic=topics.SIZE_NOT_POSITIVE
        )
    if not has_unit and size_bytes < LEAST_WITHOUT_UNIT:
        raise _without_unit(size)
    return int(min(size_bytes, _MOST_BYTES))


def _parse_text(text: str) -> tuple[float, bool]:
    """Returns the bytes of a text, and whether the text names their unit."""
    match = _SIZE.fullmatch(text)
    unit = "" if match is None else match["unit"].lower()
    if match is None or unit not in _UNIT_BYTES:
        raise _unreadable(text)
    return float(match["sign"] + match["number"]) * _UNIT_BYTES[unit], bool(unit)


def _unreadable(text: str) -> InvalidSizeError:
    """Returns the error for a text that is no size, with what was probably meant."""
    share, match = _SHARE.fullmatch(text), _SIZE.fullmatch(text)
    cause, suggestion = None, None
    if share is not None:
        cause = "A share says nothing without the size that it is a share of."
        suggestion = (
            f"Plan without a budget first. In Python, memory_budget=int("
            f"{float(share['percent']) / 100:g} * plan.peak_bytes) is a share of that plan's peak; "
            "on the command line, write the share of the printed peak as a size, such as 9.6GiB."
        )
    elif match is not None and match["unit"].lower() in _SHORT_UNITS:
        unit = match["unit"][0].upper()
        cause = f"{match['unit']!r} is no unit of Kiwi."
        suggestion = f'Write "{match["number"]}{unit}iB" or "{match["number"]}{unit}B".'
    return InvalidSizeError(
        f"The memory size {text!r} cannot be read.",
        topic=topics.SIZE_UNREADABLE,
        cause=cause,
        suggestion=suggestion,
    )


def _without_unit(size: float | str) -> InvalidSizeError:
    number = size.strip() if isinstance(size, str) else f"{size:.10g}"
    return InvalidSizeError(
        f"A memory size of {size!r} has no unit, and would be {number} bytes.",
        topic=topics.SIZE_WITHOUT_UNIT,
        suggestion=f'Write "{number}GiB", or "{number}B" if bytes are meant; in Python, an int is '
        "a number of bytes as well.",
    )


def format_bytes(size: float) -> str:
    """Returns a size as text for people, in binary units, such as "9.30 GiB"."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= factor:
            return f"{size / factor:.2f} {unit}"
    return f"{size:.0f} B"


def size_above(size_bytes: int) -> str:
    """Returns a rounded size, at most 1.6 % above `size_bytes`, as text for an option: '"102MiB"'.

    A budget that is suggested after a search should leave room, because the next search rarely
    reaches exactly the same peak.
    """
    step_bytes = 1 << max(0, size_bytes.bit_length() - 7)
    rounded_bytes = -(-size_bytes // step_bytes) * step_bytes
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if rounded_bytes % factor == 0:
            return f'"{rounded_bytes // factor}{unit}"'
    return f'"{rounded_bytes}B"'


def format_seconds(seconds: float) -> str:
    """Returns a duration as text for people, such as "83.3 ms". A duration below a nanosecond
    becomes "0 s"."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if abs(seconds) >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return "0 s"
