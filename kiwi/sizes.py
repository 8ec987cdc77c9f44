"""Memory sizes and durations as text."""

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
_SIZE = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-zA-Z]*)\s*")


def parse_size(size: int | float | str) -> int:
    """Returns the bytes of `size`, which is a number of bytes, or text such as "16GiB", "40GB" or
    "1.5 GiB".

    **Raises:** `InvalidSizeError` if the size cannot be read or is not positive.
    """
    suggestion = 'A number of bytes, or text such as "16GiB" or "40GB".'
    if isinstance(size, str):
        size_bytes = _parse_text(size)
    elif isinstance(size, bool) or not isinstance(size, int | float) or size != size:
        raise InvalidSizeError(
            f"{size!r} is not a memory size.", topic=topics.SIZE_UNREADABLE, suggestion=suggestion
        )
    else:
        size_bytes = int(min(size, 2.0**62))
    if size_bytes <= 0:
        raise InvalidSizeError(
            f"A memory size of {size!r} is not positive.",
            topic=topics.SIZE_NOT_POSITIVE,
            suggestion=suggestion,
        )
    return size_bytes


def _parse_text(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None or match["unit"].lower() not in _UNIT_BYTES:
        raise InvalidSizeError(
            f"The memory size {text!r} cannot be read.",
            topic=topics.SIZE_UNREADABLE,
            cause="It is not a number followed by one of B, KB, MB, GB, TB, KiB, MiB, GiB, TiB.",
        )
    return int(float(match["number"]) * _UNIT_BYTES[match["unit"].lower()])


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
    return str(rounded_bytes)


def format_seconds(seconds: float) -> str:
    """Returns a duration as text for people, such as "83.3 ms". A duration below a nanosecond
    becomes "0 s"."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if abs(seconds) >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return "0 s"
