"""Arrays as bodies: the forms numpy writes, and everything else refused."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from app.codec.npy import is_rearranged, write_header
from app.errors import MalformedBody, NotRepresentable, RequestError
from tests.app.codec import samples


def saved(array: Any, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asanyarray(array), version)
    return file.getvalue()


def decode(data: bytes, datatype: str = "FP32", shape: Any = (-1, 3)) -> Any:
    codec = samples.codec(samples.model(datatype, shape))
    return codec.decode(None, None, None, [data]).inputs["x"]


def refusal(data: bytes, datatype: str = "FP32", shape: Any = (-1, 3)) -> str:
    codec = samples.codec(samples.model(datatype, shape))
    with pytest.raises(RequestError) as caught:
        codec.decode(b"application/x-npy", None, None, [data])
    return str(caught.value)


ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3) / 3


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("byte_order", ["<", ">"])
def test_every_form(version: tuple[int, int], order: Any, byte_order: str) -> None:
    array = ARRAY.astype(f"{byte_order}f4", order=order)
    tensor = decode(saved(array, version))
    assert tensor.shape == (2, 3)
    assert tensor.numpy().tolist() == ARRAY.tolist()


def test_three_dimensions_in_fortran_order() -> None:
    array = np.asfortranarray(np.arange(24, dtype=">i2").reshape(2, 3, 4))
    tensor = decode(saved(array), "INT16", (-1, -1, -1))
    assert tensor.numpy().tolist() == array.tolist()


@pytest.mark.parametrize("kind", ["S", "U", ">U"])
def test_strings(kind: str) -> None:
    array = np.array([["a", "grün" if kind != "S" else "b", ""]])
    tensor = decode(saved(array.astype(kind)), "BYTES")
    want = [[item.encode() for item in array[0].tolist()]]
    assert tensor.numpy().tolist() == want


def test_a_header_written_by_others() -> None:
    """Other orders of the keys, other quotes and spacing, no padding."""
    for text in (
        b'{"shape": (2, 3), "fortran_order": False, "descr": "<f4"}',
        b"{'descr':'<f4','fortran_order':False,'shape':(2,3),}\n",
        b"  { 'descr' : '=f4' , 'fortran_order': False,\n 'shape': ( 2 , 3 ) }  ",
    ):
        head = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
        assert decode(head + ARRAY.tobytes()).numpy().tolist() == ARRAY.tolist()


GOOD = saved(ARRAY)


def with_header(text: bytes, data: bytes = ARRAY.tobytes()) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


ITEMS = "'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), "


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x93NUMPY", "at byte 6"),
        (GOOD[:11], "its header states 118 bytes, but 1 follow"),
        (b"\x93NUMPY\x02\x00\x01\x00", "it ends within the header"),
        (b"\x93NUMPX" + GOOD[6:], "expected \\x93NUMPY"),
        (GOOD[:6] + b"\x04\x00" + GOOD[8:], "version 4.0"),
        (GOOD[:6] + b"\x01\x01" + GOOD[8:], "version 1.1"),
        (
            b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 9000,
            "its header has 4294967295 bytes; at most 10000 are allowed",
        ),
        (GOOD[:-1], "takes 24 bytes, but 23 follow"),
        (GOOD + b"x", "takes 24 bytes, but 25 follow"),
        (with_header(b""), "expected a header in braces"),
        (with_header(b"{}"), "expected descr, fortran_order and shape"),
        (with_header(b"{'descr': '<f4'}"), "expected descr, fortran_order and shape"),
        (with_header(f"{{{ITEMS}'descr': '<f4'}}".encode()), "header not understood"),
        (with_header(f"{{{ITEMS}'more': 1}}".encode()), "header not understood"),
        (
            with_header(f"{{{ITEMS}}}".replace("'<f4'", "[('a', '<f4')]").encode()),
            "header not understood",
        ),
        (
            with_header(f"{{{ITEMS}}}".replace("(2, 3)", "(-1, 3)").encode()),
            "header not understood",
        ),
        (
            with_header(f"{{{ITEMS}}}".replace("(2, 3)", "(2 3)").encode()),
            "shape not understood",
        ),
        (
            with_header(f"{{{ITEMS}}}".replace("(2, 3)", f"({'9' * 30}, 3)").encode()),
            "shape not understood",
        ),
        (
            with_header(f"{{{ITEMS}}}".replace("(2, 3)", f"({2**59}, 3)").encode()),
            "causes total element count to exceed",
        ),
        (
            with_header(f"{{{ITEMS}}}".replace("(2, 3)", "(0, 9999999999)").encode()),
            "causes total element count to exceed",
        ),
        (
            with_header(f"{{{ITEMS}}}".replace("(2, 3)", "(1,)" * 1).encode(), b"1234"),
            "unexpected shape for input 'x' for model 'm'. Expected [-1,3], got [1].",
        ),
        (
            with_header(
                f"{{{ITEMS}}}".replace("(2, 3)", f"({'1, ' * 40})").encode(), b"1234"
            ),
            "the array has 40 dimensions; at most 32",
        ),
        (with_header(f"{{{ITEMS}}}".replace("<f4", "O").encode()), "data-type is 'O'"),
        (with_header(f"{{{ITEMS}}}".replace("<f4", "Q9").encode()), "is not supported"),
        (
            with_header(f"{{{ITEMS}}}".replace("<f4", "f999").encode()),
            "is not supported",
        ),
        (
            with_header(f"{{{ITEMS}}}".replace("<f4", "S999999999").encode()),
            "data-type is 'BYTES', but model 'm' expects 'FP32'",
        ),
    ],
)
def test_refusals(data: bytes, words: str) -> None:
    assert words in refusal(data)


@pytest.mark.parametrize(
    ("array", "name"),
    [
        (ARRAY.astype(np.float64), "FP64"),
        (ARRAY.astype(np.float16), "FP16"),
        (ARRAY.astype(np.int32), "INT32"),
        (ARRAY.astype(np.uint8), "UINT8"),
        (ARRAY.astype(bool), "BOOL"),
        (ARRAY.astype(np.complex64), "<c8"),
        (ARRAY.astype("S4"), "BYTES"),
        (np.zeros((2, 3), "M8[s]"), ""),
        (np.zeros((2, 3), "V4"), "V4"),
    ],
)
def test_the_type_has_to_be_the_models(array: Any, name: str) -> None:
    text = refusal(saved(array))
    assert "header not understood" in text or (
        f"inference input 'x' data-type is '{name}', but model 'm' expects 'FP32'"
        in text
        or "data-type is '|V4'" in text
    )


def test_an_object_array_is_never_unpickled() -> None:
    file = io.BytesIO()
    np.save(file, np.array([print], dtype=object), allow_pickle=True)
    assert "data-type is '|O'" in refusal(file.getvalue(), "FP32", (-1,))
    assert "data-type is '|O'" in refusal(file.getvalue(), "BYTES", (-1,))


def test_needs_a_model_with_one_input() -> None:
    two = (("A", "FP32", (-1,)), ("B", "FP32", (-1,)))
    codec = samples.codec(samples.model(inputs=two))
    with pytest.raises(RequestError, match="'m' has 2: \\['A', 'B'\\]"):
        codec.decode(None, None, None, [GOOD])


@pytest.mark.parametrize("shape", [(), (0,), (7,), (1, 2, 3), (10,) * 6])
def test_written_headers_are_numpys(shape: tuple[int, ...]) -> None:
    head = write_header("<f4", shape)
    assert len(head) % 64 == 0
    loaded = np.load(io.BytesIO(head + bytes(4 * int(np.prod(shape)))))
    assert loaded.shape == shape
    assert loaded.dtype == np.float32


def test_strings_that_npy_cannot_hold() -> None:
    codec = samples.codec(samples.model("BYTES"))
    for values in ([b"a\0"], [b"x" * 100_000, *[b""] * 1000]):
        array = np.array([*values, b"keep"], dtype=object)
        request = samples.binary("BYTES", array).decode(codec, b"application/x-npy")
        with pytest.raises(NotRepresentable, match="output 'y' has strings"):
            codec.encode(request, {"y": request.inputs["x"]})


def test_many_headers_do_not_pile_up() -> None:
    for count in range(300):
        array = np.zeros((count, 3), np.float32)
        assert decode(saved(array)).shape == (count, 3)


def test_truncation_at_every_byte() -> None:
    for end in range(len(GOOD)):
        with pytest.raises(MalformedBody):
            samples.codec(samples.model("FP32", None)).decode(
                b"application/x-npy", None, None, [GOOD[:end]]
            )


def test_whether_an_array_is_used_as_it_is() -> None:
    for array, expected in (
        (np.zeros((2, 3), "<f4"), False),
        (np.zeros((2, 3), ">f4"), True),
        (np.asfortranarray(np.zeros((2, 3), "<f4")), True),
        (np.zeros((2, 3), "|u1"), False),
    ):
        file = io.BytesIO()
        np.save(file, array)
        written = file.getvalue()
        assert is_rearranged(written[:4096]) is expected
        assert is_rearranged(written[:20])  # cannot tell yet
        # The grammar allows white space anywhere.
        assert is_rearranged(written.replace(b"{", b"{\n", 1)) is expected


@pytest.mark.parametrize("cut", [None, 1000])
def test_an_array_to_rearrange_is_not_joined(cut: int | None) -> None:
    """Joining would hold the interpreter's lock for as long as it takes."""
    values = np.arange(5000, dtype=np.float32)
    file = io.BytesIO()
    np.lib.format.write_array(file, values)
    data = file.getvalue().replace(b"False", b"True ")
    request = samples.Body(data).decode(
        samples.codec(samples.model("FP32", (-1,))), cut=cut
    )
    (part,) = request.inputs["x"].parts
    assert bytes(part) == values.tobytes()
    base = part.obj
    while isinstance(base, np.ndarray):
        base = base.base
    joined = base.obj if isinstance(base, memoryview) else base
    assert joined is None if cut else joined == data
