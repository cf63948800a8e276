"""The grammar of sizes and durations.

`DMABUF_MP_FUZZ=100000` sets the number of examples.
"""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dmabuf_mp import sizes

EXAMPLES = settings(max_examples=int(os.environ.get("DMABUF_MP_FUZZ", "100")), deadline=None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1),
        ("16384", 16384),
        ("0x4000", 16384),
        ("0xFf", 255),
        ("16KiB", 16384),
        ("16 KiB", 16384),
        ("16B", 16),
        ("16kB", 16000),
        ("1.5MiB", 1572864),
        ("0.5KiB", 512),
        ("1.001kB", 1001),
        ("2MB", 2_000_000),
        ("1GB", 10**9),
        ("1GiB", 2**30),
        ("1TB", 10**12),
        ("1TiB", 2**40),
        ("9223372036854775807", 2**63 - 1),
        ("0x7fffffffffffffff", 2**63 - 1),
    ],
)
def test_size(text: str, expected: int) -> None:
    assert sizes.parse_size(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not a size"),
        ("0", "smallest is 1 byte"),
        ("0KiB", "smallest is 1 byte"),
        ("0x0", "smallest is 1 byte"),
        ("-1", "negative"),
        ("-16KiB", "negative"),
        ("+16", "write 16"),
        ("016", "leading zeros: write 16"),
        ("08KiB", "leading zeros: write 8KiB"),
        ("1_000", "underscores: write 1000"),
        ("1e6", "exponent"),
        ("1.5", "not a whole number of bytes"),
        ("1.0", "has a fraction and no unit"),
        ("1.5B", "not a whole number of bytes"),
        ("1.0001KiB", "not a whole number of bytes"),
        ("1.KiB", "write 1KiB"),
        (".5KiB", "is not a size"),
        ("0x10KiB", "is not a size"),
        ("0o17", "is not a size"),
        ("0X10", "is not a size"),
        ("16k", "write 16KiB (16 × 1,024 bytes) or 16kB (16 × 1,000 bytes)"),
        ("16K", "write 16KiB (16 × 1,024 bytes) or 16kB (16 × 1,000 bytes)"),
        ("16KB", "write 16KiB (16 × 1,024 bytes) or 16kB (16 × 1,000 bytes)"),
        ("1.5m", "write 1.5MiB (1.5 × 1,048,576 bytes) or 1.5MB (1.5 × 1,000,000 bytes)"),
        ("1g", "write 1GiB"),
        ("1T", "write 1TiB"),
        ("16kib", "write 16KiB"),
        ("16mb", "write 16MiB (16 × 1,048,576 bytes) or 16MB"),
        ("16b", "write 16B"),
        ("16 bytes", "expected B, KiB"),
        ("16  KiB", "write 16KiB"),
        (" 16KiB", "write 16KiB"),
        ("16KiB\n", "write 16KiB"),
        ("١٦", "is not a size"),
        ("１６KiB", "is not a size"),
        ("9223372036854775808", "too large"),
        ("8388608TiB", "too large"),
        ("9" * 10_000, "too long"),
        ("true", "is not a size"),
        ("12:30", "is not a size"),
    ],
)
def test_size_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        sizes.parse_size(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500ms", 0.5),
        ("30s", 30.0),
        ("5m", 300.0),
        ("1h", 3600.0),
        ("1.5s", 1.5),
        ("2 s", 2.0),
        ("168h", 604800.0),
    ],
)
def test_duration(text: str, expected: float) -> None:
    assert sizes.parse_duration(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("30", "'30' has no unit: for seconds write 30s"),
        ("1.5", "for seconds write 1.5s"),
        ("0s", "more than 0"),
        ("0.0ms", "more than 0"),
        ("169h", "at most 168h"),
        ("-1s", "negative"),
        ("1e3s", "exponent"),
        ("05s", "leading zeros: write 5s"),
        ("30sec", "unknown unit 'sec' in '30sec': expected ms, s, m, h"),
        ("30S", "unknown unit 'S'"),
        ("1h30m", "is not a duration"),
        ("", "is not a duration"),
        ("12:30", "is not a duration"),
        ("1" * 400 + "s", "too long"),
    ],
)
def test_duration_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        sizes.parse_duration(text)


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [
        (1, "1 B"),
        (1000, "1000 B"),
        (16384, "16 KiB"),
        (1572864, "1.5 MiB"),
        (2**40, "1 TiB"),
        (10**6, "976.56 KiB"),
    ],
)
def test_format_size(size_bytes: int, expected: str) -> None:
    assert sizes.format_size(size_bytes) == expected


@EXAMPLES
@given(st.integers(1, sizes.MAX_SIZE_BYTES))
def test_every_whole_number_is_a_size(size_bytes: int) -> None:
    assert sizes.parse_size(str(size_bytes)) == sizes.parse_size(hex(size_bytes)) == size_bytes


@EXAMPLES
@given(st.integers(1, 2**20), st.sampled_from(sorted(sizes.SIZE_UNITS)))
def test_every_unit_scales(number: int, unit: str) -> None:
    assert sizes.parse_size(f"{number}{unit}") == number * sizes.SIZE_UNITS[unit]


@EXAMPLES
@given(st.one_of(st.text(), st.text("0123456789.-+_xekKMmGiBsh ")))
def test_text_is_a_size_or_refused_as_the_schema_says(text: str) -> None:
    """The pattern that editors get accepts exactly what the parser does, the range aside."""
    matches = re.search(sizes.SIZE_PATTERN.replace("$", r"\Z"), text) is not None
    try:
        size_bytes = sizes.parse_size(text)
    except ValueError as error:
        assert not matches or re.search("whole number|smallest|too l", str(error))
    else:
        assert matches
        assert 1 <= size_bytes <= sizes.MAX_SIZE_BYTES


@EXAMPLES
@given(st.one_of(st.text(), st.text("0123456789.-+emsh ")))
def test_text_is_a_duration_or_refused_as_the_schema_says(text: str) -> None:
    matches = re.search(sizes.DURATION_PATTERN.replace("$", r"\Z"), text) is not None
    try:
        duration_s = sizes.parse_duration(text)
    except ValueError as error:
        assert not matches or re.search("out of range|too long", str(error))
    else:
        assert matches
        assert 0 < duration_s <= sizes.MAX_DURATION_S
