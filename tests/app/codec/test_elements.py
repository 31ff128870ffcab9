"""Values of a list become elements exactly, or are refused by their position."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.codec.elements import Elements, packer
from app.errors import InvalidTensor
from app.spec import DATATYPES
from tests.app.codec import samples

INTEGERS = [name for name, item in DATATYPES.items() if item.kind in "iu"]
FLOATS = [name for name, item in DATATYPES.items() if item.kind == "f"]
NUMBERS = INTEGERS + FLOATS


def pack(datatype: str, values: list[Any], **options: Any) -> bytes:
    item = DATATYPES[datatype]
    elements = Elements("x", item, 1000)
    return elements.pack(values, len(values), packer(item, len(values)), **options)


def objection(datatype: str, values: list[Any], **options: Any) -> str:
    with pytest.raises(InvalidTensor) as caught:
        pack(datatype, values, **options)
    return str(caught.value)


@pytest.mark.parametrize("datatype", NUMBERS)
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, "is the boolean true"),
        ("5", "is the string '5'"),
        (None, "is null"),
        ([1], "is a list"),
        ({}, "is an object"),
        (b"1", "is 1 bytes"),
    ],
)
def test_what_is_no_number(datatype: str, value: Any, words: str) -> None:
    text = objection(datatype, [1, 2, value, 3])
    assert text.startswith(f"element 2 of input 'x' {words}")
    assert f"; the model expects {datatype}" in text
    is_float = value is None and DATATYPES[datatype].kind == "f"
    assert ("set the parameter 'missing'" in text) is is_float


@pytest.mark.parametrize("datatype", INTEGERS)
def test_integers_at_their_limits(datatype: str) -> None:
    limits = np.iinfo(samples.NUMPY[datatype])
    low, high = int(limits.min), int(limits.max)
    packed = pack(datatype, [low, 0, high])
    assert np.frombuffer(packed, samples.NUMPY[datatype]).tolist() == [low, 0, high]
    for outside in (low - 1, high + 1, 10**400):
        text = objection(datatype, [0, outside])
        assert text.startswith("element 1 of input 'x' is ")
        assert f"which is not in {low}..{high}" in text
    for value in (1.0, 0.5, 1e40, math.nan):
        assert "not an integer" in objection(datatype, [0, value])
    # JSON's integers of more than 64 bits arrive as floats.
    assert f"not an integer in {low}..{high}; " in objection(datatype, [0, 2.0**64])
    assert "not an integer; " in objection(datatype, [0, 1.0])


@pytest.mark.parametrize("datatype", FLOATS)
def test_floats_out_of_range(datatype: str) -> None:
    largest = float(samples.pool(datatype)[7])
    if datatype in ("FP32", "FP64"):
        largest = float(np.finfo(samples.NUMPY[datatype]).max)
    pack(datatype, [largest, -largest, math.inf, -math.inf, math.nan])
    for value in (10**400, -(10**400), largest * 1.01):
        if math.inf in (value, -value):
            continue  # FP64: there is no larger float
        text = objection(datatype, [1.0, 2.0, value])
        assert text.startswith("element 2 of input 'x' is ")
        assert "out of range" in text


@pytest.mark.parametrize("datatype", FLOATS)
def test_special_values_have_spellings(datatype: str) -> None:
    kind = samples.NUMPY[datatype]
    packed = pack(datatype, ["NaN", 1.5, "Infinity", "-Infinity", 2])
    got = np.frombuffer(packed, kind).astype(np.float32)
    assert np.isnan(got[0])
    assert got[1:].tolist() == [1.5, math.inf, -math.inf, 2.0]
    nulls = np.frombuffer(pack(datatype, [None, 1], null_is_nan=True), kind)
    assert np.isnan(nulls.astype(np.float32)[0])
    assert "is null" in objection(datatype, [None, 1])
    assert "the string 'nan'" in objection(datatype, ["nan"])
    assert "boolean" in objection(datatype, ["NaN", True])


def test_booleans_are_nothing_else() -> None:
    assert pack("BOOL", [True, False]) == b"\x01\x00"
    assert pack("BOOL", []) == b""
    assert objection("BOOL", [True, 1]) == (
        "element 1 of input 'x' is 1; the model expects BOOL"
    )
    assert "is 0.5" in objection("BOOL", [0.5])
    assert "is null" in objection("BOOL", [True, None])


@pytest.mark.parametrize("datatype", [*NUMBERS, "BOOL"])
def test_count(datatype: str) -> None:
    item = DATATYPES[datatype]
    elements = Elements("x", item, 1000)
    value = True if datatype == "BOOL" else 1
    for given_count in (0, 2, 4):
        with pytest.raises(
            InvalidTensor, match=f"3 elements, 'data' has {given_count}"
        ):
            elements.pack([value] * given_count, 3, packer(item, 3))


def test_strings() -> None:
    elements = Elements("x", DATATYPES["BYTES"], 4)
    packed = elements.pack_strings(["ü", b"\xff", ""], 3)
    assert packed == b"\x02\0\0\0\xc3\xbc\x01\0\0\0\xff\0\0\0\0"
    elements.check_framing(packed, 3)
    for values, words in (
        ([5], "element 0 of input 'x' is 5; the model expects BYTES"),
        (["a", None], "element 1 of input 'x' is null"),
        (["a", True], "element 1"),
        (["12345"], "has 5 bytes, more than the 4 allowed"),
        (["\ud800"], "UTF-8"),
        (["a", "b", "c"], "expected 1 string elements for inference input 'x', got 3"),
    ):
        count = 1 if len(values) == 3 else len(values)
        with pytest.raises(InvalidTensor) as caught:
            elements.pack_strings(values, count)
        assert words in str(caught.value)


def test_base64_strings() -> None:
    elements = Elements("x", DATATYPES["BYTES"], 100)
    packed = elements.pack_strings(["/wA=", ""], 2, is_base64=True)
    assert packed == b"\x02\0\0\0\xff\0\0\0\0\0"
    for value in ("/wA", "not valid base64", "é", 5, b"/wA="):
        with pytest.raises(InvalidTensor, match="element 0"):
            elements.pack_strings([value], 1, is_base64=True)


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b"", 1),
        (b"\x01\0\0\0a", 0),
        (b"\x01\0\0\0a", 2),
        (b"\x01\0\0", 1),
        (b"\x02\0\0\0a", 1),
        (b"\xff\xff\xff\xff", 1),
        (b"\x65\0\0\0" + b"a" * 101, 1),
        (b"\x01\0\0\0a\x01", 1),
        (b"\x01\0\0\0a\x01", 2),
    ],
)
def test_framing_that_does_not_add_up(data: bytes, count: int) -> None:
    with pytest.raises(InvalidTensor):
        Elements("x", DATATYPES["BYTES"], 100).check_framing(data, count)


def fits(value: Any, datatype: str) -> bool:
    """Written down a second time, slowly: may a JSON value be an element?"""
    kind = DATATYPES[datatype].kind
    if isinstance(value, bool):
        return kind == "b"
    if kind in "iu":
        limits = np.iinfo(samples.NUMPY[datatype])
        return isinstance(value, int) and limits.min <= value <= limits.max
    if kind == "f":
        if isinstance(value, str):
            return value in ("NaN", "Infinity", "-Infinity")
        if value is None:
            return True  # a gap, which is NaN
        if not isinstance(value, int | float):
            return False
        if not math.isfinite(value):
            return True
        # Rounds to a finite value: below the middle to what would come next.
        mantissa, top = {
            "FP16": (11, 16),
            "BF16": (8, 128),
            "FP32": (24, 128),
            "FP64": (53, 1024),
        }[datatype]
        exact = Fraction(value)
        return abs(exact) < Fraction(2) ** top - Fraction(2) ** (top - mantissa - 1)
    return False


json_values = st.one_of(
    st.booleans(),
    st.none(),
    st.integers(-(2**64), 2**65),
    st.integers(-300, 300),
    st.floats(width=64),
    st.floats(-70000, 70000),
    st.sampled_from(["NaN", "Infinity", "-Infinity", "", "1", 65519.99, 65520, 3.4e38]),
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from([*NUMBERS, "BOOL"]), st.lists(json_values, max_size=4))
def test_exactly_what_fits_is_taken(datatype: str, values: list[Any]) -> None:
    codec = samples.codec(samples.model(datatype))
    entry = {"name": "x", "shape": [len(values)], "datatype": datatype, "data": values}
    body = samples.Body(json.dumps({"inputs": [entry]}).encode())
    # What a JSON reader makes of the numbers is not what is tested here.
    if any(isinstance(v, int) and not -(2**63) <= v < 2**64 for v in values):
        return
    if all(fits(value, datatype) for value in values):
        assert body.decode(codec).inputs["x"].shape == (len(values),)
    else:
        with pytest.raises(InvalidTensor, match="element"):
            body.decode(codec)
