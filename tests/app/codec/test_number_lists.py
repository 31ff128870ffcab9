"""Lists of numbers read in C: the same bytes, the same requests, the same errors.

The module is compiled here, so that it is tested where the rest runs as plain Python.
"""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

import app
from app.codec import json_lists, number_lists
from app.errors import RequestError
from app.limits import DEFAULT_LIMITS
from native.build import why_not
from tests.app.codec import samples
from tests.app.codec.test_hostile import mutate
from tests.c_modules import compiled

SOURCE = Path(app.__file__).with_name("codec") / "_numbers.c"
Pack = Callable[[bytes, int, int, tuple[int, ...], str], bytes | None]

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "compiles")


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    module = compiled(SOURCE, tmp_path_factory.mktemp("numbers"))
    found: Pack = module.pack
    return found


@pytest.fixture
def with_lists(pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The codec as it is where the hot path is compiled."""
    monkeypatch.setattr(number_lists, "pack", pack)
    monkeypatch.setattr(number_lists, "SMALL", 0)


def plainly(text: bytes, count: int, code: str) -> bytes | None:
    try:
        return struct.pack(f"<{count}{code}", *orjson.loads(text))
    except (struct.error, OverflowError, orjson.JSONDecodeError):
        return None


def written(values: list[str]) -> bytes:
    return b"[" + ",".join(values).encode() + b"]"


def doubles(chance: random.Random) -> str:
    return repr(chance.uniform(-1, 1) * 10.0 ** chance.randrange(-45, 45))


def any_doubles(chance: random.Random) -> str:
    return repr(struct.unpack("<d", chance.randbytes(8))[0])


def singles(chance: random.Random) -> str:
    return repr(struct.unpack("<f", chance.randbytes(4))[0])


def halves_between_doubles(chance: random.Random) -> str:
    return str((2 * (chance.getrandbits(52) | 1 << 52) + 1) << chance.randrange(9))


def with_exponent(chance: random.Random) -> str:
    digits = chance.randrange(10 ** chance.randrange(1, 21))
    return f"{digits}{chance.choice('eE')}{chance.randrange(-60, 60)}"


def decimals(chance: random.Random) -> str:
    return f"{chance.uniform(-100, 100):.{chance.randrange(1, 22)}f}"


def tiny(chance: random.Random) -> str:
    return f"0.{'0' * chance.randrange(30)}{chance.randrange(10**17)}"


@pytest.mark.parametrize(
    "number",
    [
        doubles,
        any_doubles,
        singles,
        halves_between_doubles,
        with_exponent,
        decimals,
        tiny,
    ],
)
@pytest.mark.parametrize("code", ["f", "d"])
def test_floats_to_the_last_bit(
    pack: Pack, number: Callable[[random.Random], str], code: str
) -> None:
    chance = random.Random(7)
    read = 0
    for _ in range(5000):
        value = number(chance)
        if not math.isfinite(float(value)):
            continue
        # Numbers behind it: near the end of the text it is read in another way.
        text = written([value, "0.12345678", "1"])
        found = pack(text, 0, len(text), (3,), code)
        assert found is None or found == plainly(text, 3, code), text
        read += found is not None
        text = written([value])
        found = pack(text, 0, len(text), (1,), code)
        assert found is None or found == plainly(text, 1, code), text
    assert read > 500, "hardly any was read"


@pytest.mark.parametrize("code", "bBhHiIqQ")
def test_integers_and_their_limits(pack: Pack, code: str) -> None:
    bits = 8 * struct.calcsize(f"<{code}")
    edges = {0, 1, 7, 10**18}
    for power in (bits - 1, bits):
        edges |= {sign * (1 << power) + d for sign in (1, -1) for d in (-1, 0, 1)}
    for value in sorted(edges):
        text = written([str(value)])
        found = pack(text, 0, len(text), (), code)
        if len(str(abs(value))) <= 19:
            assert found == plainly(text, 1, code), value
        else:
            assert found in (None, plainly(text, 1, code)), value


@pytest.mark.parametrize(
    "text",
    [
        "[1,2,3]",
        "[[1,2,3]]",
        "[[[1],[2],[3]]]",
        " [1,2,3]",
        "[1,2,3] ",
        "[1,2]",
        "[1,2,3,4]",
        "[1 2,3]",
        "[1,2,,3]",
        "[1,2,3,]",
        "[,1,2,3]",
        "[01,2,3]",
        "[1.,2,3]",
        "[.1,2,3]",
        "[+1,2,3]",
        "[-,2,3]",
        "[1e,2,3]",
        "[1e+,2,3]",
        "[0x1,2,3]",
        "[-0,2,3]",
        "[null,2,3]",
        "[true,2,3]",
        '["1",2,3]',
        "[[1],2,3]",
        "[1,[2],3]",
        "[[1,2],[3]]",
        "[NaN,2,3]",
        "[Infinity,2,3]",
        "[1e400,2,3]",
        "[1_0,2,3]",
        "[]",
        "[[]]",
        "[{},2,3]",
        "[1,2,3]]",
        "[[1,2,3]",
        "[1\n,\t2 ,\r3]",
        "[-0.0,1E2,2e+1]",
    ],
)
@pytest.mark.parametrize("shape", [(3,), (1, 3), (1, 3, 1)])
def test_lists_of_any_form(pack: Pack, text: str, shape: tuple[int, ...]) -> None:
    """What is read is right; what is not a list of this shape is not read."""
    found = pack(text.encode(), 0, len(text), shape, "f")
    try:
        values = orjson.loads(text)
    except orjson.JSONDecodeError:
        assert found is None
        return
    if found is not None:
        array = np.array(values, np.float32)
        assert array.shape in ((math.prod(shape),), shape)
        assert array.tobytes() == found


def test_lists_of_the_usual_form_are_read(pack: Pack) -> None:
    for text in (b"[1,2.5,-3e2]", b"[[1, 2.5, -3e2]]", b"[ [ 1 , 2.5 ,\n-3e2 ] ]"):
        assert pack(text, 0, len(text), (1, 3), "f") == struct.pack("<3f", 1, 2.5, -300)


def test_nothing_is_read_outside_the_list(pack: Pack) -> None:
    text = b"x[1,2,3]4"
    assert pack(text, 1, 8, (3,), "B") == b"\1\2\3"
    for start, end in ((0, 8), (1, 7), (1, 9), (2, 8), (1, 100), (-1, 8), (8, 1)):
        assert pack(text, start, end, (3,), "B") is None
    assert pack(text, 1, 8, (1 << 62, 1 << 62), "d") is None
    with pytest.raises(TypeError):
        pack("[1]", 0, 3, (1,), "f")  # type: ignore[arg-type]


def answer(codec: Any, body: bytes) -> Any:
    """What becomes of a body: its request, or its error, in words."""
    try:
        request = codec.decode(None, None, None, [body])
    except RequestError as error:
        return type(error), str(error)
    tensors = {
        name: (tensor.shape, b"".join(map(bytes, tensor.parts)))
        for name, tensor in request.inputs.items()
    }
    return tensors, request.id, request.parameters, request.outputs, request.nan


def one(data: Any, **more: Any) -> dict[str, Any]:
    return {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": data, **more}


ROWS = [[1, 2.5, -3], [0.1, 1e-7, 1e20]]
FLAT = [1, 2.5, -3, 0.1, 1e-7, 1e20]
BODIES: list[Any] = [
    {"inputs": [one(FLAT)]},
    {"inputs": [one(ROWS)]},
    {"id": "7", "inputs": [one(FLAT)], "outputs": [{"name": "y"}]},
    {"id": '"data":[1]', "inputs": [one(FLAT)]},
    {"id": "\\", "inputs": [one(FLAT)]},
    {"inputs": [one(FLAT, parameters={"a": [1]})]},
    {"inputs": [one(FLAT, parameters={"data": [1]})]},
    {"inputs": [one([]), {"data": FLAT}], "data": FLAT},
    {"parameters": {"data": FLAT}, "inputs": [one([])]},
    {"inputs": [one(FLAT, shape=[3, 2])]},
    {"inputs": [one(FLAT[:5])]},
    {"inputs": [one([*FLAT[:5], None])]},
    {"inputs": [one([*FLAT[:5], "NaN"])]},
    {"inputs": [one([*FLAT[:5], math.nan])]},
    {"inputs": [one([*FLAT[:5], True])]},
    {"inputs": [one([*FLAT[:5], 1e39])]},
    {"inputs": [one([*FLAT[:5], 1 << 70])]},
    {"inputs": [one(FLAT, name="z")]},
    {"inputs": [one(FLAT), one(FLAT)]},
    {"inputs": [one(7)]},
    {"inputs": {"x": ROWS}},
    {"inputs": {"data": ROWS}},
    {"inputs": [one(FLAT)], "unknown": {"data": [[[1]]]}},
    [one(FLAT)],
    {"data": FLAT},
]


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_the_same_request_or_the_same_error(
    body: Any, compact: bool, pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = samples.codec(samples.model("FP32", (-1, 3)))
    text = json.dumps(body, separators=(",", ":") if compact else None).encode()
    monkeypatch.setattr(number_lists, "pack", None)
    plain = answer(codec, text)
    monkeypatch.setattr(number_lists, "pack", pack)
    monkeypatch.setattr(number_lists, "SMALL", 0)
    assert answer(codec, text) == plain


def test_damaged_bodies_too(pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(11)
    codec = samples.codec(samples.model("FP32", (-1, 3)))
    texts = [json.dumps(body, separators=(",", ":")).encode() for body in BODIES]
    monkeypatch.setattr(number_lists, "SMALL", 0)
    for _ in range(4000):
        text = mutate(chance.choice(texts[:8]), chance)
        monkeypatch.setattr(number_lists, "pack", None)
        plain = answer(codec, text)
        monkeypatch.setattr(number_lists, "pack", pack)
        assert answer(codec, text) == plain, text


@pytest.mark.usefixtures("with_lists")
@pytest.mark.parametrize("datatype", ["FP32", "FP64", "INT8", "UINT64", "INT32"])
def test_usual_bodies_go_this_way(datatype: str) -> None:
    x = {"name": "x", "shape": [2, 3], "datatype": datatype, "data": [[1, 2, 3]] * 2}
    for inputs in ([x], [{**x, "data": [1, 2, 3, 1, 2, 3]}]):
        text = json.dumps({"inputs": inputs}).encode()
        document = json_lists.parse_with_lists(text, DEFAULT_LIMITS)
        data = document["inputs"][0]["data"]
        assert isinstance(data, number_lists.NumberList)
        assert orjson.loads(text[data.start : data.end]) == inputs[0]["data"]
        codec = samples.codec(samples.model(datatype, (-1, 3)))
        request = codec.decode(None, None, None, [text])
        assert request.inputs["x"].numpy().tolist() == [[1, 2, 3], [1, 2, 3]]


@pytest.mark.usefixtures("with_lists")
def test_several_inputs_keep_their_lists() -> None:
    model = samples.model(inputs=(("a", "FP32", (2,)), ("b", "INT8", (3,))))
    inputs = [
        {"name": "b", "data": [1, 2, 3], "shape": [3], "datatype": "INT8"},
        {"name": "a", "shape": [2], "datatype": "FP32", "data": [0.5, -1]},
    ]
    text = json.dumps({"inputs": inputs}).encode()
    request = samples.codec(model).decode(None, None, None, [text])
    assert request.inputs["a"].numpy().tolist() == [0.5, -1]
    assert request.inputs["b"].numpy().tolist() == [1, 2, 3]


def test_many_keys_take_time_in_proportion(
    pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(number_lists, "pack", pack)
    text = b'{"inputs":[' + b'"data":[1],' * 1_000_000 + b"]}"
    with pytest.raises(number_lists.Unusual):
        json_lists.parse_with_lists(text, DEFAULT_LIMITS)
