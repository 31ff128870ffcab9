"""Msgpack bodies, most of them hostile. Documents are tested with the document."""

from __future__ import annotations

import struct
import time
import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pytest

from app.codec.oip_msgpack import parse_msgpack
from app.errors import BodyTooLarge, InvalidRequest, MalformedBody, RequestError
from app.limits import DEFAULT_LIMITS, Limits
from tests.app.codec import samples


def parse(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Any:
    return parse_msgpack(data, limits)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x81",
        b"\x81\xa1a",
        b"\x81\xa1",
        b"\xc1",
        b"\x80\x80",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdc\xff\xff\x01",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xa1\xff",
        b"\x81\x01\x02",
        b"\x81\x90\x02",
        b"\x81\xc0\x02",
        b"\x81\xcb\0\0\0\0\0\0\0\0\x02",
    ],
)
def test_what_is_no_msgpack(data: bytes) -> None:
    with pytest.raises(MalformedBody, match="failed to parse the request msgpack"):
        parse(data)


@pytest.mark.parametrize(
    "data",
    [
        msgpack.packb(msgpack.Timestamp(1, 2)),
        b"\xd6\xff\0\0\0\0",
        b"\xd4\x05\x00",
        b"\xc7\x00\x05",
        b"\xc7\x03\x05abc",
        b"\xc9\xff\xff\xff\xff\x05",
    ],
)
def test_no_extension_is_read(data: bytes) -> None:
    with pytest.raises(RequestError):
        parse(data)
    with pytest.raises(RequestError):
        parse(b"\x81\xa1a" + data)


LONG = bytes(range(256)) * 2048


@pytest.mark.parametrize(
    "document",
    [
        {"a": LONG},
        {"a": {"b": [LONG, LONG[:70_000], b"short", "text", 1]}, "c": LONG},
        [LONG, None],
        LONG,
    ],
)
def test_long_bytes_of_a_large_body_are_not_copied(document: Any) -> None:
    data = msgpack.packb(document)
    tracemalloc.start()
    try:
        value = parse(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert value == document
    assert peak < 64 << 10


@pytest.mark.parametrize("place", [b"\xd6\0\0\0\0\0", b"\xc7\x04\0\0\0\0\0"])
def test_no_extension_is_read_beside_long_bytes(place: bytes) -> None:
    """The parser sees extensions in place of long bytes, but only its own."""
    for data in (place + msgpack.packb(LONG), msgpack.packb(LONG) + place):
        with pytest.raises(RequestError):
            parse(b"\x92" + data)


def test_what_is_wrong_beside_long_bytes_is_said() -> None:
    long = msgpack.packb(LONG)
    with pytest.raises(MalformedBody, match="1 byte too many at its end"):
        parse(long + b"\x01")
    with pytest.raises(InvalidRequest, match="key 'a' occurs twice in one map"):
        parse(b"\x82\xa1a" + long + b"\xa1a\x01")
    for data in (b"\x92" + long, long[:-1]):
        with pytest.raises(MalformedBody, match="failed to parse the request msgpack"):
            parse(data)
    # There is no room for so many elements.
    with pytest.raises(RequestError):
        parse(b"\x92" + long + b"\xdd\xff\xff\xff\xff")


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a", b"\xdd\0\0\0\x01"])
def test_deep_nesting(opening: bytes) -> None:
    for depth in (2000, 100_000):
        with pytest.raises(RequestError):
            parse(opening * depth + b"\x01")
        with pytest.raises(RequestError):
            parse(opening * depth)


def test_repeated_keys() -> None:
    with pytest.raises(InvalidRequest, match="key 'a' occurs twice in one map"):
        parse(b"\x82\xa1a\x01\xa1a\x02")


@pytest.mark.parametrize("depth", [1, 30, 500])
def test_claimed_lengths_allocate_nothing(depth: int) -> None:
    """Lists that claim more than there is, one within the other."""
    claims = b"".join(struct.pack(">BI", 0xDD, 1_000_001) for _ in range(depth))
    data = claims + b"\x01" * 1_000_000
    tracemalloc.start()
    try:
        with pytest.raises(RequestError):
            parse(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40 << 20


def test_long_lists_are_counted() -> None:
    values = list(range(100)) * 60
    assert parse(msgpack.packb({"a": values, "b": values}))["b"] == values
    limits = Limits(max_document_values=10_000)
    assert parse(msgpack.packb({"a": values}), limits)
    with pytest.raises(BodyTooLarge, match="more than 10000 values"):
        parse(msgpack.packb({"a": values, "b": values}), limits)
    with pytest.raises(BodyTooLarge):
        parse(msgpack.packb({"a": [[]] * 5000}), limits)
    with pytest.raises(RequestError):
        parse(msgpack.packb({"a": values * 2}), limits)


def pauses(data: bytes, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often other threads could run while a document was parsed."""
    slept: list[float] = []
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", slept.append)
        assert parse(data) == msgpack.unpackb(data)
    return len(slept)


def test_others_run_while_a_long_list_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = msgpack.packb({"a": ["a"] * 400_000})
    blocks = len(data) // (16 << 10)
    assert blocks > 40
    assert pauses(data, monkeypatch) >= 2 * blocks  # one walk, and one that builds


def test_a_long_string_is_copied_with_few_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = msgpack.packb({"a": bytes(8 << 20), "b": [1] * 5000})
    assert 4 <= pauses(data, monkeypatch) < 32


STRINGS = [f"a{i:06}" for i in range(100_000)]


MOST = 50_000


@pytest.mark.parametrize(
    ("document", "peak_mib"),
    [
        ({"a": STRINGS}, 3),
        ({"a": [1, *STRINGS]}, 3),
        ({"a": [1.5] * 60_000, "b": STRINGS}, 4),
        ({"a": [STRINGS]}, 3),
        ({"a": [item.encode() for item in STRINGS]}, 3),
        ({"a": [STRINGS[i : i + 10] for i in range(0, 100_000, 10)]}, 8),
    ],
)
def test_too_many_strings_are_refused_before_more_are_built(
    document: dict[str, Any], peak_mib: int
) -> None:
    data = msgpack.packb(document)
    limits = Limits(max_strings=MOST, max_document_keys=10)
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLarge, match=f"more than {MOST} strings"):
            parse(data, limits)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < peak_mib << 20


def test_strings_of_every_length_are_counted() -> None:
    lengths = [0, 31, 32, 255, 256, 65535, 65536]
    strings = ["x" * n for n in lengths] + [b"y" * n for n in lengths]
    numbers = [0, -1, -33, 200, -129, 1 << 15, -(1 << 15) - 1, 1 << 31, -(1 << 40)]
    others = [*numbers, 1 << 63, 0.5, None, True, {"k": 1}, [2] * 20, [3] * 5000]
    document = [*strings, *others, np.float32(0.5).item(), *([7] * 70_000), *strings]
    data = msgpack.packb(document)
    count = 2 * len(strings) + 1  # the key, too
    enough = Limits(max_strings=count, max_document_keys=0)
    with pytest.raises(InvalidRequest, match="keys"):
        parse(data, enough)
    assert parse(data, Limits(max_strings=count - 1, max_document_keys=1)) == document
    with pytest.raises(BodyTooLarge, match="strings"):
        parse(data, Limits(max_strings=count - 2, max_document_keys=1))


def test_numbers_instead_of_bytes_on_request() -> None:
    codec = samples.codec(samples.model("BF16"))
    array = samples.sample("BF16", (5,))
    entry = {"name": "x", "shape": [5], "datatype": "BF16", "data": array.tobytes()}
    for more in (
        {"outputs": [{"name": "y", "parameters": {"binary_data": False}}]},
        {"parameters": {"binary_data_output": False}},
    ):
        request = codec.decode(
            None, None, None, [msgpack.packb({"inputs": [entry], **more})]
        )
        response = codec.encode(request, {"y": request.inputs["x"]})
        data = msgpack.unpackb(response.body)["outputs"][0]["data"]
        assert data == array.astype(np.float64).tolist()


@pytest.mark.parametrize("size", [0, 255, 256, 65535, 65536, 200_000])
def test_response_is_msgpack_at_every_size(size: int) -> None:
    codec = samples.codec(samples.model("UINT8", (-1,)))
    array = np.arange(size, dtype=np.uint8)
    request = samples.msgpack_bytes("UINT8", array).decode(codec)
    request.id = "ü"
    response = codec.encode(request, {"y": request.inputs["x"]})
    assert msgpack.unpackb(response.body) == {
        "id": "ü",
        "model_name": "m",
        "model_version": "1",
        "outputs": [
            {"name": "y", "datatype": "UINT8", "shape": [size], "data": array.tobytes()}
        ],
    }


def test_many_outputs() -> None:
    out = tuple((f"y{n}", "INT8", (-1,)) for n in range(20))
    codec = samples.codec(samples.model("INT8", out=out))
    request = samples.msgpack_bytes("INT8", np.ones(3, np.int8)).decode(codec)
    tensors = {name: request.inputs["x"] for name, _, _ in out}
    found = samples.read_response(codec.encode(request, tensors))
    assert list(found) == [name for name, _, _ in out]
