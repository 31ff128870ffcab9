"""Strings and their bytes, by plain Python and by the compiled module.

The module is compiled here, so that it is tested where the rest runs as plain Python.
"""

from __future__ import annotations

import random
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import popef_io
from native.build import why_not
from popef_io import InvalidValueError, decode_strings, encode_strings, strings
from tests.c_modules import compiled

SOURCE = Path(popef_io.__file__).with_name("_strings.c")


@pytest.fixture(scope="module")
def in_c(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    if why_not():
        pytest.skip(why_not())
    return compiled(SOURCE, tmp_path_factory.mktemp("strings"))


@pytest.fixture(autouse=True, params=["plain", "compiled"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test both ways."""
    if request.param == "compiled":
        module = request.getfixturevalue("in_c")
        monkeypatch.setattr(strings, "pack_strings", module.pack_strings)
        monkeypatch.setattr(strings, "split_strings", module.split_strings)
    else:
        monkeypatch.setattr(strings, "pack_strings", lambda *_: None)
        monkeypatch.setattr(strings, "split_strings", lambda *_: None)


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
        (b"", (-1,), "no negative sizes, got "),
        (b"\0\0\0\0" * 2, (-1, -2), "no negative sizes"),
        (b"", (0, -1), "no negative sizes"),
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


def test_many_strings() -> None:
    chance = random.Random(1)
    elements = [chance.randbytes(chance.randrange(9)) for _ in range(10_000)]
    data = encode_strings(np.array(elements, object))
    assert data == encode_strings(elements)
    assert decode_strings(data, (10_000,)).tolist() == elements
    blocks = list(strings.string_blocks(memoryview(data), 10_000))
    assert [one for block in blocks for one in block] == elements
    assert max(map(len, blocks)) < 5000
    with pytest.raises(InvalidValueError, match="string 9999 of 10000 extends past"):
        decode_strings(data[:-1] if elements[-1] else data[:-4], (10_000,))


@pytest.mark.parametrize(
    ("elements", "most"),
    [
        ([b"abcd"], 3),
        (["aé"], 2),
        (["\ud800"], 9),
        ([1], 9),
        ([None], 9),
        ([bytearray(b"a")], 9),
        ([b"a", memoryview(b"b")], 9),
        ([b""], -1),
    ],
)
def test_what_c_leaves_to_python(
    in_c: ModuleType, elements: list[object], most: int
) -> None:
    assert in_c.pack_strings(elements, most) is None


def test_packed_in_c(in_c: ModuleType) -> None:
    assert (
        in_c.pack_strings([b"abc", "é", ""], 3)
        == b"\3\0\0\0abc\2\0\0\0\xc3\xa9\0\0\0\0"
    )
    assert in_c.pack_strings([], 0) == b""
    assert in_c.pack_strings([b""], 1 << 40) == bytes(4)


@pytest.mark.parametrize("data", [b"", b"abc", b"\1\0\0\0", b"\xff\xff\xff\xffab"])
def test_ends_that_are_missing(in_c: ModuleType, data: bytes) -> None:
    assert in_c.split_strings(data, 0, 1) is None
    assert in_c.end_of_strings(data, 1, 1 << 32) is None


@pytest.mark.parametrize("at", [-1, 5, 1 << 62])
@pytest.mark.parametrize("count", [-1, 1, 1 << 62])
def test_places_outside_the_data(in_c: ModuleType, at: int, count: int) -> None:
    assert in_c.split_strings(bytes(4), at, count) is None
    assert in_c.end_of_strings(bytes(4), -1 if count == 1 else count, 9) is None


def test_ends(in_c: ModuleType) -> None:
    data = encode_strings([b"a", b"", b"bcd"])
    assert [in_c.end_of_strings(data, count, 3) for count in range(5)] == [
        0,
        5,
        9,
        16,
        None,
    ]
    assert in_c.end_of_strings(data, 3, 2) is None
    assert in_c.end_of_strings(memoryview(data), 2, 1) == 9
    long = encode_strings([b"x" * 2_000_000, b"y"])  # without the interpreter's lock
    assert in_c.end_of_strings(long, 2, 2_000_000) == len(long)
    assert in_c.split_strings(long, 2_000_004, 1) == ([b"y"], len(long))


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("pack_strings", ((b"a",), 1)),
        ("pack_strings", ([b"a"],)),
        ("pack_strings", ([b"a"], "1")),
        ("split_strings", (b"", 0)),
        ("split_strings", ("text", 0, 0)),
        ("split_strings", (b"", "0", 0)),
        ("end_of_strings", (b"", 0)),
        ("end_of_strings", ("text", 0, 0)),
        ("end_of_strings", (b"", 0, None)),
    ],
)
def test_other_arguments(
    in_c: ModuleType, function: str, arguments: tuple[Any, ...]
) -> None:
    with pytest.raises(TypeError):
        getattr(in_c, function)(*arguments)
