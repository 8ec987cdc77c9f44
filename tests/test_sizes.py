"""Memory sizes: accepted and refused texts."""

import ast

import numpy as np
import pytest

from kiwi.errors import InvalidSizeError
from kiwi.sizes import format_bytes, format_seconds, parse_size, size_above


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, 1),
        (1.5 * 2**20, 3 * 2**19),
        ("2097152", 2**21),
        ("123B", 123),
        (np.int64(5), 5),
        ("16GiB", 16 * 2**30),
        ("40GB", 40 * 10**9),
        (" 1.5 GiB ", 3 * 2**29),
        ("512MiB", 512 * 2**20),
        ("2kib", 2048),
        ("7 tb", 7 * 10**12),
        ("10b", 10),
        (float("inf"), 2**62),
        (10**400, 2**62),
        ("9" * 400 + "GiB", 2**62),
    ],
)
def test_size_is_read(size, expected: int):
    assert parse_size(size) == expected


@pytest.mark.parametrize(
    "size",
    ["", "GiB", "16 gigs", "1e9", "16GiB16", "1.2.3GB", True, None, [1], float("nan")],
)
def test_unreadable_size_is_refused_with_its_value(size):
    with pytest.raises(InvalidSizeError) as caught:
        parse_size(size)
    assert repr(size) in caught.value.what
    assert "16GiB" in caught.value.suggestion


@pytest.mark.parametrize("size", [0, -5, -0.5, "0GiB", "-1GiB", "0", "-3", "0.2B"])
def test_size_that_is_not_positive_is_refused(size):
    with pytest.raises(InvalidSizeError, match="not positive") as caught:
        parse_size(size)
    assert repr(size) in caught.value.what


@pytest.mark.parametrize(
    ("size", "number"),
    [("4.06", "4.06"), (" 16 ", "16"), (0.5, "0.5"), (80.0, "80"), (1e6, "1000000")],
)
def test_a_small_size_without_a_unit_is_asked_about(size, number: str):
    with pytest.raises(InvalidSizeError, match="has no unit") as caught:
        parse_size(size)
    assert caught.value.code == "KIWI-M008" and repr(size) in caught.value.what
    assert f'"{number}GiB"' in caught.value.suggestion
    assert f'"{number}B"' in caught.value.suggestion


@pytest.mark.parametrize(
    ("size", "suggested"),
    [("60%", "int(0.6 * plan.peak_bytes)"), ("16G", '"16GiB"'), ("80 gi", '"80GB"')],
)
def test_what_was_probably_meant_is_suggested(size, suggested: str):
    with pytest.raises(InvalidSizeError, match="cannot be read") as caught:
        parse_size(size)
    assert suggested in caught.value.suggestion


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.50 KiB"),
        (2**20, "1.00 MiB"),
        (9.3 * 2**30, "9.30 GiB"),
    ],
)
def test_bytes_are_written_in_binary_units(size, text: str):
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (2.5, "2.5 s"), (0.0833, "83.3 ms"), (4.2e-5, "42 us")]
)
def test_seconds_are_written_in_a_fitting_unit(seconds, text: str):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize("size_bytes", [1, 127, 45_060, 106_676_264, 5_767_172, 2**30, 2**40 - 1])
def test_a_suggested_size_is_readable_and_hardly_larger(size_bytes):
    text = size_above(size_bytes)
    found = parse_size(ast.literal_eval(text))
    assert size_bytes <= found <= 1.016 * size_bytes
    assert len(text) <= 10
