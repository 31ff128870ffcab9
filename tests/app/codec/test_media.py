"""What came, and what goes back."""

from __future__ import annotations

import numpy as np
import pytest

from app.codec import Encoding, NanPolicy
from app.codec.media import encoding_of, reply_to
from app.errors import InvalidRequest, MalformedBody, NotAcceptable
from tests.app.codec import samples

JSON, MSGPACK, NPY, BINARY = (
    Encoding.JSON,
    Encoding.MSGPACK,
    Encoding.NPY,
    Encoding.BINARY,
)


@pytest.mark.parametrize(
    ("content_type", "first", "encoding"),
    [
        (b"application/json", b"\x80", JSON),
        (b"application/JSON; charset=utf-8", b"", JSON),
        (b"application/msgpack", b"{", MSGPACK),
        (b"application/x-msgpack", b"{", MSGPACK),
        (b"application/x-npy", b"{", NPY),
        *(
            (content_type, first, encoding)
            for content_type in (
                None,
                b"",
                b"application/octet-stream",
                b"text/plain;charset=UTF-8",
                b"application/x-www-form-urlencoded",
            )
            for first, encoding in (
                (b'{"inputs"', JSON),
                (b' \r\n\t{"inputs"', JSON),
                (b"\x93NUMPY\x01", NPY),
                (b"\x81\xa6", MSGPACK),
                (b"\x8f", MSGPACK),
                (b"\xde\x00\x01", MSGPACK),
                (b"\xdf\x00\x00\x00\x01", MSGPACK),
            )
        ),
    ],
)
def test_recognised(content_type: bytes | None, first: bytes, encoding: object) -> None:
    assert encoding_of(content_type, [first]) is encoding


@pytest.mark.parametrize("content_type", [b"image/png", b"Audio/WAV; rate=8000", b"x"])
def test_other_types_are_those_of_files(content_type: bytes) -> None:
    assert encoding_of(content_type, [b"{"]) is Encoding.FILE


def test_a_form_is_one_whatever_it_begins_with() -> None:
    boundary = b"multipart/form-data; boundary=x"
    assert encoding_of(boundary, [b"{"]) is Encoding.FORM


@pytest.mark.parametrize(
    "first",
    [
        b"[1]",
        b"\x91",
        b"\x90NUMPY",
        b"inputs=1",
        b" ",
        b"\x89PNG\r\n\x1a\n",
        b"\x81\x01",
    ],
)
def test_not_recognised(first: bytes) -> None:
    assert encoding_of(None, [first]) is Encoding.FILE


def test_an_empty_body_is_nothing() -> None:
    with pytest.raises(MalformedBody, match="the body is empty"):
        encoding_of(None, [b""])


@pytest.mark.parametrize(
    ("accept", "came", "encoding"),
    [
        (None, MSGPACK, MSGPACK),
        (b"*/*", NPY, NPY),
        (b"application/*", MSGPACK, MSGPACK),
        (b"application/json", MSGPACK, JSON),
        (b"Application/Msgpack", JSON, MSGPACK),
        (b"application/json, text/plain, */*", MSGPACK, MSGPACK),
        (b"application/json, */*;q=0.5", MSGPACK, JSON),
        (b"text/html,application/xhtml+xml,*/*;q=0.8", JSON, JSON),
        (b"application/json;q=0.2, application/x-npy;q=0.9", JSON, NPY),
        (b"application/json;q=0, application/x-npy", JSON, NPY),
        (b"application/x-npy, application/json", MSGPACK, NPY),
        (b"application/x-npy, application/json", JSON, JSON),
        (b"application/octet-stream", JSON, BINARY),
        (b"application/json;q=x, application/msgpack;q=0.1", JSON, MSGPACK),
        (b"application/json;q=1_0, application/msgpack;q=0.1", JSON, MSGPACK),
    ],
)
def test_accept(accept: bytes | None, came: Encoding, encoding: Encoding) -> None:
    assert reply_to(accept, came).encoding is encoding


@pytest.mark.parametrize(
    "accept", [b"text/html", b"image/*", b"application/json;q=0", b",", b";;", b"\xff"]
)
def test_nothing_acceptable(accept: bytes) -> None:
    with pytest.raises(NotAcceptable, match="application/x-npy"):
        reply_to(accept, JSON)


def test_nan_policy_in_accept() -> None:
    assert reply_to(b"application/json; nan=string", JSON).nan is NanPolicy.STRING
    assert reply_to(b'application/json; nan="null"', JSON).nan is NanPolicy.NULL
    with pytest.raises(InvalidRequest, match="'nan' must be one of"):
        reply_to(b"application/json; nan=maybe", JSON)


def test_any_number_of_different_headers() -> None:
    for number in range(1000):
        assert reply_to(b"application/json, x/%d" % number, MSGPACK).encoding is JSON
        assert encoding_of(b"application/json; n=%d" % number, [b""]) is JSON


def test_npy_holds_one_output() -> None:
    out = (("y", "FP32", (-1,)), ("z", "FP32", (-1,)))
    codec = samples.codec(samples.model(out=out))
    body = samples.npy("FP32", np.zeros(2, np.float32))
    assert body.decode(codec).encoding is JSON
    with pytest.raises(NotAcceptable, match="2 outputs: \\['y', 'z'\\]"):
        body.decode(codec, b"application/x-npy")
    entry = b'{"inputs":{"x":[1]},"outputs":["z"]}'
    request = codec.decode(None, None, b"application/x-npy", [entry])
    assert request.encoding is NPY
    assert request.outputs == ("z",)
