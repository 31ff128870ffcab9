"""Sizes in bytes, as people write and read them."""

from __future__ import annotations

import math

import pytest

from app.sizes import decimal, parse_size, size_text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1, 1),
        ("1", 1),
        ("64KiB", 65536),
        ("64kb", 64000),
        ("64K", 65536),
        ("1.5 MiB", 1_572_864),
        ("2GB", 2_000_000_000),
        ("3g", 3 << 30),
        ("0", 0),
    ],
)
def test_sizes(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", [b"1_0", b"0_5.5", b"", b"x", "\u0661".encode()])
def test_numbers_of_headers_have_ascii_digits_alone(text: bytes) -> None:
    assert math.isnan(decimal(text))
    assert decimal(b"1e1") == 10.0


@pytest.mark.parametrize("text", ["", "many", "-1", "1 PB", "1e9", "0x10", True, None])
def test_what_is_no_size(text: object) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (4_463_000, "4.26 MiB"),
        (5 << 30, "5 GiB"),
        (1 << 60, "1048576 TiB"),
    ],
)
def test_what_people_read(size: int, text: str) -> None:
    assert size_text(size) == text
