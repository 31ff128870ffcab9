from __future__ import annotations

import numpy as np
import pytest

from popef_io import InvalidValueError, decode_strings, encode_strings


@pytest.mark.parametrize(
    ("elements", "data"),
    [
        ([], b""),
        ([""], b"\0\0\0\0"),
        (["a", b"\xff\0"], b"\1\0\0\0a\2\0\0\0\xff\0"),
        (["é" * 200], b"\x90\1\0\0" + "é".encode() * 200),
    ],
)
def test_strings_and_their_bytes(elements: list[str | bytes], data: bytes) -> None:
    assert encode_strings(elements) == data
    decoded = decode_strings(data, (len(elements),))
    assert decoded.dtype == object
    expected = [x.encode() if isinstance(x, str) else x for x in elements]
    assert decoded.tolist() == expected


@pytest.mark.parametrize("dtype", [object, "S", "U"])
def test_arrays(dtype: type | str) -> None:
    array = np.array([["a", "bc"], ["", "d"]], dtype=dtype)
    decoded = decode_strings(encode_strings(array.T), (2, 2))
    assert decoded.tolist() == [[b"a", b""], [b"bc", b"d"]]


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), (0, 1 << 40)])
def test_no_elements(shape: tuple[int, ...]) -> None:
    assert decode_strings(b"", shape).shape == shape


def test_scalar() -> None:
    decoded = decode_strings(memoryview(b"\1\0\0\0x"), ())
    assert decoded.shape == ()
    assert decoded[()] == b"x"


@pytest.mark.parametrize(
    ("data", "shape", "reason"),
    [
        (b"", (1,), "0 bytes cannot hold 1 strings"),
        (b"\0\0\0", (1,), "3 bytes cannot hold 1 strings"),
        (b"\1\0\0\0", (1,), "string 0 of 1 extends past the end of the data"),
        (b"\4\0\0\0abcd", (2,), "string 1 of 2 extends past the end of the data"),
        (b"\5\0\0\0abcde\0\0", (2,), "string 1 of 2 extends past the end of the data"),
        (b"\0\0\0\0x", (1,), "1 unexpected bytes follow the last string"),
        (b"x", (0,), "1 unexpected bytes follow the last string"),
        (b"x" * 8, (1 << 60, 4), "cannot hold"),
    ],
)
def test_wrong_bytes(data: bytes, shape: tuple[int, ...], reason: str) -> None:
    with pytest.raises(InvalidValueError, match=reason):
        decode_strings(data, shape)


def test_lone_surrogates() -> None:
    with pytest.raises(InvalidValueError, match="not valid Unicode: surrogates"):
        encode_strings(["\ud800"])


@pytest.mark.parametrize("element", [1, None, 1.5, ["a"], bytearray(b"a")])
def test_no_string(element: object) -> None:
    with pytest.raises(InvalidValueError, match="must be bytes or str"):
        encode_strings([element])
