"""Documents made to cost: what they take is bounded, and grows only as they do.

Covers: app/codec/model.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import orjson
import pytest

from app.codec import ModelCodec
from app.codec.json_text import _keys_in, parse_json
from app.codec.messages import Body
from app.codec.model import ALL_AT_ONCE, DECODED_AT_ONCE, DECODED_AT_ONCE_AT_MOST
from app.codec.oip_msgpack import _unique, parse_msgpack
from app.codec.shapes import check_depth, flatten
from app.errors import InvalidRequest, MalformedBody, RepeatedKey, RequestError
from app.give_way import MANY
from app.limits import DEFAULT_LIMITS
from app.spec import ModelSpec, TensorSpec

MIB = 1 << 20
ROOT = Path(__file__).resolve().parents[3]
Parse = Callable[[bytes, Any], Any]


def filled(begin: bytes, unit: bytes, end: bytes, size: int) -> bytes:
    return begin + unit * ((size - len(begin) - len(end)) // len(unit)) + end


def many_keys(size: int) -> bytes:
    return b"{" + b",".join(b'"%07d":1' % i for i in range(size // 12)) + b"}"


def packed_map(count: int) -> bytes:
    pairs = b"".join(b"\xa5%05x\x00" % (i % 0x100000) for i in range(count))
    return b"\xdf" + count.to_bytes(4, "big") + pairs


def nested(unit: bytes, size: int) -> bytes:
    inner = b"\xdc\x0f\xff" + unit * 4095
    count = size // len(inner)
    return b"\x81\xa1x\xdd" + count.to_bytes(4, "big") + inner * count


HOSTILE: dict[str, tuple[Parse, Callable[[int], bytes]]] = {
    "equal keys": (parse_json, lambda n: filled(b'{"a":1', b',"a":1', b"}", n)),
    "equal keys beside NaN": (
        parse_json,
        lambda n: filled(b'{"a":NaN', b',"a":1', b"}", n),
    ),
    "keys": (parse_json, lambda n: b'{"x":' + many_keys(n) + b"}"),
    "escapes": (parse_json, lambda n: filled(b'{"x":":::', b'\\"', b'"}', n)),
    "strings": (parse_json, lambda n: filled(b'{"x":[":::"', b',"ab"', b"]}", n)),
    "objects": (parse_json, lambda n: filled(b'{"y":"::","x":[0', b",{}", b"]}", n)),
    "lists": (parse_json, lambda n: filled(b'{"y":"::","x":[0', b",[]", b"]}", n)),
    "packed keys": (parse_msgpack, lambda n: packed_map(n // 7)),
    "packed lists": (parse_msgpack, lambda n: nested(b"\x90", n)),
    "packed maps": (parse_msgpack, lambda n: nested(b"\x80", n)),
}


def write_memory() -> None:
    """Writes the bytes that each takes, each measured in a child of its own."""

    def peak(parse: Parse, text: bytes) -> int:
        if not (child := os.fork()):
            with contextlib.suppress(RequestError):
                parse(text, DEFAULT_LIMITS)
            os._exit(0)
        _, status, usage = os.wait4(child, 0)
        assert status == 0, status
        return usage.ru_maxrss << 10

    for kind, (parse, make) in HOSTILE.items():
        for size in (MIB, 4 * MIB):
            text = make(size)
            nothing = peak(lambda *_: None, text)
            measured = [kind, len(text), peak(parse, text) - nothing]
            sys.stdout.write(json.dumps(measured) + "\n")


@pytest.fixture(scope="module")
def memory() -> dict[str, list[tuple[int, int]]]:
    """Pairs of a document's size and what reading it takes, in bytes, by kind.

    From a process with one thread and no memory that is left of other tests; tracing
    allocations instead would take ten times as long.
    """
    code = f"from {__name__} import write_memory; write_memory()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    taken: dict[str, list[tuple[int, int]]] = {kind: [] for kind in HOSTILE}
    for kind, size, peak in map(json.loads, done.stdout.splitlines()):
        taken[kind].append((size, peak))
    return taken


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_parsed_takes_memory_in_proportion(
    kind: str, memory: dict[str, list[tuple[int, int]]]
) -> None:
    assert len(memory[kind]) == 2
    for size, peak in memory[kind]:
        assert peak < min(70 * size, 220 * MIB), (kind, size, peak / size)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_json, filled(b'{"a":1', b',"a":1', b"}", MIB)),
        (parse_json, filled(b'{"a":NaN', b',"a":1', b"}", MIB)),
        (parse_json, b'{"x":' + many_keys(MIB) + b"}"),
        (parse_msgpack, packed_map(70_000)),
    ],
)
def test_there_may_not_be_very_many_keys(parse: Parse, text: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"keys") as raised:
        parse(text, DEFAULT_LIMITS)
    assert not isinstance(raised.value, RepeatedKey)


def test_a_repeated_key_is_found_by_looking_at_each_key_a_few_times() -> None:
    looked = 0

    class Key(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal looked
            looked += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    count = 20_000
    pairs = [(Key(number), 0) for number in (*range(count), count - 1)]
    with pytest.raises(InvalidRequest, match="occurs twice"):
        _unique(pairs)
    assert looked < 10 * count


@pytest.mark.parametrize("seed", range(20))
def test_keys_are_counted_as_a_parser_does(seed: int) -> None:
    chance = random.Random(seed)
    words = ["a", ":", '"', "\\", '\\"', "é:", "\\\\", '":', "{", "\n"]

    def value(depth: int) -> Any:
        kind = chance.randrange(4 if depth else 2)
        if kind == 0:
            return chance.choice([1, 2.5, None, True])
        if kind == 1:
            return "".join(chance.choices(words, k=chance.randrange(5)))
        if kind == 2:
            return [value(depth - 1) for _ in range(chance.randrange(6))]
        return {value(0).__repr__() + str(i): value(depth - 1) for i in range(5)}

    def keys(item: Any) -> int:
        if isinstance(item, dict):
            return len(item) + sum(map(keys, item.values()))
        return sum(map(keys, item)) if isinstance(item, list) else 0

    document = {"x": [value(5) for _ in range(200)]}
    text = orjson.dumps(document, option=orjson.OPT_INDENT_2 if seed % 2 else None)
    assert _keys_in(text) == keys(document)
    assert parse_json(text, DEFAULT_LIMITS) == document
    long = b'{"y":"' + b"z" * (1 << 18) + b'","x":' + text + b"}"
    assert _keys_in(long) == keys(document) + 2


@pytest.mark.parametrize(
    "text",
    [
        b'{"id":"\\ud800","x":NaN}',
        b'{"x":NaN,"\\udfff":1}',
        b'{"x":[NaN,["a\\uDBFFb"]]}',
        b'{"x":NaN,"y":"\\ude00\\ud83d"}',
    ],
)
def test_half_of_a_surrogate_pair_is_refused(text: bytes) -> None:
    with pytest.raises(MalformedBody):
        parse_json(text.replace(b"NaN", b"1"), DEFAULT_LIMITS)
    with pytest.raises(MalformedBody):
        parse_json(text, DEFAULT_LIMITS)


def test_whole_pairs_and_what_looks_like_halves_are_read() -> None:
    text = b'{"x":NaN,"y":"\\ud83d\\ude00","z":"\\\\ud800"}'
    read = parse_json(text, DEFAULT_LIMITS)
    assert (read["y"], read["z"]) == ("\U0001f600", "\\ud800")


def spec(datatype: str) -> ModelSpec:
    return ModelSpec("m", "1", (TensorSpec.make("x", datatype, (-1,)),), ())


FRAMED = {b"inference-header-content-length": b"9"}
LONG_HEADER = {b"inference-header-content-length": b"2000000"}


@pytest.mark.parametrize(
    ("datatype", "headers", "head", "size", "expected"),
    [
        ("FP32", {}, b"{", DECODED_AT_ONCE_AT_MOST, False),
        ("FP32", {}, b"{", DECODED_AT_ONCE_AT_MOST + 1, True),
        ("FP32", {}, b"\x93NUMPY", 64 * MIB, False),
        ("FP32", {}, b"\x81\xa6", ALL_AT_ONCE, False),
        ("FP32", {}, b"\x81\xa6", ALL_AT_ONCE + 1, True),
        ("BYTES", {}, b"\x81\xa6", ALL_AT_ONCE + 1, True),
        ("BYTES", {}, b"{", ALL_AT_ONCE, False),
        ("BYTES", {}, b"{", ALL_AT_ONCE + 1, True),
        ("BYTES", {}, b"\x89PNG", DECODED_AT_ONCE, False),
        ("BYTES", FRAMED, b"{", DECODED_AT_ONCE, False),
        ("FP32", {}, b"\x81\xa6", DECODED_AT_ONCE + 1, True),
        ("FP32", {}, b"\x81\xc6\x00\x04\x00\x00", 400 * 1024, False),
        # Most of the body are bytes with a length of two bytes.
        ("FP32", {}, b"\x81\xa4data\xc5\x7f\xff", ALL_AT_ONCE + 1, False),
        # The length of bytes stands in a string, or is that of the rest alone.
        ("FP32", {}, b"\x81\xa5\xc6\x02\x00\x00\x00", 400 * 1024, True),
        ("FP32", {}, b"\x81\xc4\x05\xc6\x02\x00\x00\x00", 400 * 1024, True),
        ("FP32", {}, b"\x81\xc6\x02\x00\x00\x00", 48 * MIB, True),
        ("FP32", {}, b"\x81\xc6\x02\x00\x00\x00", 80 * MIB, True),
        ("FP32", FRAMED, b"{", MIB * 9, False),
        ("FP32", LONG_HEADER, b"{", MIB * 9, True),
        ("BYTES", FRAMED, b"{", MIB * 9, True),
    ],
)
def test_what_takes_long_is_known_before(
    datatype: str, headers: dict[bytes, bytes], head: bytes, size: int, expected: bool
) -> None:
    codec = ModelCodec(spec(datatype))
    body: Body = [head + bytes(size - len(head))]
    assert codec.takes_long(headers, body) is expected


DENSE = {
    "parameters": b'{"parameters":{%b"a":0}}' % (b'"a":0,' * 16_384),
    "lists": b'{"inputs":{"x":[%b[]]}}' % (b"[]," * 16_384),
    "objects": b'{"inputs":{"x":[1]},"more":[%b{}]}' % (b"{}," * 16_384),
}


@pytest.mark.parametrize("name", DENSE)
def test_a_document_of_many_lists_or_keys_takes_long_at_any_size(name: str) -> None:
    codec, text = ModelCodec(spec("FP32")), DENSE[name]
    framed = {b"inference-header-content-length": b"%d" % len(text)}
    short = {b"inference-header-content-length": b"100"}
    assert codec.takes_long({}, [text[:9], text[9:]])
    assert codec.takes_long(framed, [text[:9], text[9:], bytes(64)])
    form = {b"content-type": b"multipart/form-data; boundary=B"}
    assert codec.takes_long(form, [text])
    assert not codec.takes_long(form, [bytes(DECODED_AT_ONCE)])
    assert not codec.takes_long(short, [text])
    assert not codec.takes_long({}, [text[:ALL_AT_ONCE]])
    assert codec.takes_long({}, [text], form=object())
    assert not codec.takes_long({}, [text[:ALL_AT_ONCE]], form=object())


@pytest.mark.parametrize("count", [100, 20_000])
def test_a_row_of_many_lists_is_completed_at_any_size(count: int) -> None:
    tensor = TensorSpec.make("x", "FP32", (-1, -1, -1))
    codec = ModelCodec(ModelSpec("m", "1", (tensor,), ()))
    for value, shape in (([[1]], (1, count, 1)), ([[[]]], (count, 1, 0))):
        body = json.dumps({"inputs": {"x": value * count}}).encode()
        assert codec.decode(None, None, None, [body]).inputs["x"].shape == shape


def test_packed_documents_of_any_size_are_read_alike() -> None:
    for count in (10, 5000, 200_000):
        document = {"x": list(range(count)), "y": {str(i): i for i in range(5000)}}
        assert parse_msgpack(msgpack.packb(document), DEFAULT_LIMITS) == document


def turns_during(work: Callable[[], object]) -> int:
    """Return how often another thread runs while `work` does, which is never made to
    give way.
    """
    turns, has_ended = 0, False

    def run() -> None:
        nonlocal turns
        while not has_ended:
            turns += 1
            time.sleep(0)

    usual = sys.getswitchinterval()
    other = threading.Thread(target=run)
    sys.setswitchinterval(1000)
    try:
        other.start()
        before = turns
        work()
        return turns - before
    finally:
        has_ended = True
        sys.setswitchinterval(usual)
        other.join()


@pytest.mark.parametrize(
    "document",
    [[0] * (8 * MANY), {"a": [[0] * (8 * MANY)]}, [[] for _ in range(4 * MANY)]],
    ids=["long list", "nested", "many lists"],
)
def test_checking_the_depth_of_much_gives_way(document: object) -> None:
    assert turns_during(lambda: check_depth(document, DEFAULT_LIMITS)) > 9


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        ([[0] * (8 * MANY)], (8 * MANY,)),
        ([[0] for _ in range(2 * MANY)], (2 * MANY, 1)),
    ],
    ids=["deeper than the shape", "rows"],
)
def test_flattening_much_gives_way(data: list[Any], shape: tuple[int, ...]) -> None:
    flat: list[Any] = []
    work = partial(flatten, "x", data, shape, DEFAULT_LIMITS)
    assert turns_during(lambda: flat.extend(work())) > 9
    assert flat == [0] * shape[0]
