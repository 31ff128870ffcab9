"""Forms: one part an input, bounded, as browsers, curl and httpx write them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from dataclasses import replace

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.codec import ModelCodec
from app.codec.files.form import parse_form
from app.codec.messages import InferRequest
from app.codec.outputs import strings_of
from app.errors import InvalidRequest, InvalidTensor, MalformedBody, RequestError
from app.limits import DEFAULT_LIMITS, Limits
from app.spec import ModelSpec, TensorSpec
from tests.app.codec import samples

JPEG = b"\xff\xd8\xff" + bytes(range(256)) * 3 + b"\r\n--"
BOTH = samples.model(
    inputs=(("image", "BYTES", (-1,)), ("top", "INT64", (-1,)), ("t", "FP64", (-1, 1)))
)
PICTURES = replace(
    samples.model("FP32", (-1, 1, 2, 2), max_batch_size=8),
    encoded={"x": TensorSpec.make("x", "BYTES", (-1,))},
)


def form(**options: object) -> tuple[bytes, bytes]:
    """The content type and the body of a form as httpx writes it."""
    request = httpx.Request("POST", "http://x", **options)  # type: ignore[arg-type]
    return request.headers["content-type"].encode(), request.read()


def read(
    spec: ModelSpec, content_type: bytes, body: bytes, limits: Limits = DEFAULT_LIMITS
) -> InferRequest:
    return ModelCodec(spec, limits).decode(content_type, None, None, [body])


def by_hand(*parts: bytes) -> tuple[bytes, bytes]:
    """A form of parts with their headers."""
    body = b"".join(b"--B\r\n%b\r\n" % part for part in parts) + b"--B--\r\n"
    return b"multipart/form-data; boundary=B", body


def test_a_file_and_two_fields() -> None:
    made = form(
        files={"image": ("cat.jpg", JPEG, "image/jpeg")}, data={"top": "3", "t": "1.5"}
    )
    found = read(BOTH, *made).inputs
    assert strings_of(found["image"]) == [JPEG]
    assert found["top"].numpy().tolist() == [3]
    assert found["t"].numpy().tolist() == [[1.5]]


def test_parts_of_one_name_are_elements_and_rows() -> None:
    files = [("image", ("a", b"A", "x/y")), ("image", ("b", JPEG, "image/jpeg"))]
    made = form(files=files, data={"top": ["1", "2"], "t": "[[0.5], [null]]"})
    found = read(BOTH, *made).inputs
    assert strings_of(found["image"]) == [b"A", JPEG]
    assert found["top"].numpy().tolist() == [1, 2]
    assert np.array_equal(found["t"].numpy(), [[0.5], [np.nan]], equal_nan=True)


def test_text_is_no_json_and_an_empty_float_is_nan() -> None:
    made = form(files={"image": (None, "a, 'b' [")}, data={"top": "1", "t": ""})
    found = read(BOTH, *made).inputs
    assert strings_of(found["image"]) == [b"a, 'b' ["]
    assert np.isnan(found["t"].numpy()).all()


def test_an_array_and_json_of_strings() -> None:
    array = samples.npy("FP64", np.array([[1.0], [2.0]])).data
    made = form(
        files={
            "t": ("t.npy", array, "application/octet-stream"),
            "image": (None, '["a", "b"]', "application/json"),
            "top": (None, "[1, 2]", "application/json"),
        }
    )
    found = read(BOTH, *made).inputs
    assert found["t"].numpy().tolist() == [[1.0], [2.0]]
    assert strings_of(found["image"]) == [b"a", b"b"]


def test_id_outputs_and_parameters() -> None:
    made = form(
        files={"x": ("a.png", JPEG, "image/png")},
        data={
            "id": "mine",
            "outputs": '["y"]',
            "parameters": json.dumps({"timeout": 2_000_000}),
        },
    )
    request = read(samples.model("BYTES"), *made)
    assert (request.id, request.outputs, request.timeout) == ("mine", ("y",), 2.0)


def test_an_input_of_that_name_is_an_input() -> None:
    spec = samples.model(inputs=(("id", "BYTES", (-1,)),))
    request = read(spec, *form(files={"id": (None, "7")}))
    assert strings_of(request.inputs["id"]) == [b"7"]
    assert request.id is None


def test_pictures_or_numbers() -> None:
    pictures = [("x", ("a.jpg", JPEG, "image/jpeg")), ("x", ("b.jpg", b"2", ""))]
    request = read(PICTURES, *form(files=pictures))
    assert strings_of(request.inputs["x"]) == [JPEG, b"2"]
    assert request.rows == 2
    numbers = form(files={"x": (None, "[[[[1, 2], [3, 4]]]]")})
    assert read(PICTURES, *numbers).inputs["x"].numpy().sum() == 10
    array = samples.npy("FP32", np.ones((2, 1, 2, 2), np.float32)).data
    request = read(PICTURES, *form(files={"x": ("x.npy", array)}))
    assert request.inputs["x"].numpy().shape == (2, 1, 2, 2)


NAMED = b'content-disposition: form-data; name="%b"\r\n\r\n%b'


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (by_hand(NAMED % (b"file", JPEG)), "unexpected inference input 'file'.*image"),
        (by_hand(NAMED % (b"image", JPEG)), "missing required input"),
        (by_hand(NAMED % (b"top", b"three")), "'top' takes INT64.*begins with 'three'"),
        (by_hand(b"x: y\r\n\r\na"), "no Content-Disposition"),
        (by_hand(b"content-disposition: form-data\r\n\r\na"), "no usable name"),
        (
            by_hand(b"Content-Transfer-Encoding: base64\r\n" + NAMED % (b"t", b"")),
            "send the bytes unencoded",
        ),
        (by_hand(NAMED % (b"id", b"1"), NAMED % (b"id", b"2")), "2 parts 'id'"),
        (by_hand(NAMED % (b"parameters", b"{")), "part 'parameters' is not a JSON"),
        (by_hand(*[b"X%d: y" % n for n in range(20)]), "is malformed"),
        (by_hand(b"X: " + bytes(5000)), "Maximum header size"),
        ((b"multipart/form-data", b"a"), "no boundary"),
        ((b"multipart/form-data; boundary=B", b"--B\r\n"), "ends before"),
        ((b"multipart/form-data; boundary=B", b""), "is malformed"),
        ((b"multipart/form-data; boundary=" + b"B" * 400, b"x"), "Boundary length"),
        (
            form(
                files={"t": ("a.jpg", JPEG, "image/jpeg"), "image": ("a", JPEG)},
                data={"top": "1"},
            ),
            r"file of type 'image/jpeg'.*\[image\]",
        ),
    ],
)
def test_a_bad_form_says_why(made: tuple[bytes, bytes], words: str) -> None:
    with pytest.raises((InvalidRequest, MalformedBody, InvalidTensor), match=words):
        read(BOTH, *made)


def test_the_number_of_parts_is_bounded() -> None:
    limits = Limits(max_form_parts=3)
    with pytest.raises(InvalidRequest, match="more than 3 parts"):
        read(BOTH, *by_hand(*[NAMED % (b"image", b"a")] * 4), limits)


@given(st.binary(max_size=200), st.integers(1, 50))
def test_content_survives_however_it_is_cut(content: bytes, step: int) -> None:
    content_type, body = form(files={"image": ("a", content), "b": (None, "é")})
    chunks = [body[i : i + step] for i in range(0, len(body), step)]
    parts = parse_form(content_type, [*chunks], DEFAULT_LIMITS)
    assert [(p.name, p.content) for p in parts] == [
        ("image", content),
        ("b", "é".encode()),
    ]


@given(st.binary(max_size=300))
def test_any_bytes_are_a_form_or_refused(body: bytes) -> None:
    with contextlib.suppress(RequestError):
        read(BOTH, b"multipart/form-data; boundary=B", b"--B\r\n" + body)


def test_the_parser_is_imported_with_the_first_form() -> None:
    program = (
        "import sys, app.codec; "
        "sys.exit(any('multipart' in name for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
