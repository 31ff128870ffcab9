"""Where memory ends, a document is refused, and nobody dies of it."""

from __future__ import annotations

import base64
import gzip
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgpack
import numpy as np
import orjson
import pytest

from app.codec.compression import inflate
from app.codec.json_text import parse_json
from app.codec.memory_check import ensure_room, reserve, reserving
from app.codec.messages import NanPolicy
from app.codec.oip_msgpack import parse_msgpack
from app.codec.outputs import Output, json_strings, write_strings
from app.limits import DEFAULT_LIMITS
from app.spec import TensorSpec
from engine import Tensor

MIB = 1 << 20
ROOT = Path(__file__).resolve().parents[3]
#: KiB that a process may have beyond what it has.
LIMITS = (0, 512, 1024, 2048, 4096, 8192, 12288, 16384, 24576)


def json_of(kind: str) -> bytes:
    """A document of some ten thousand values."""
    if kind == "one string":
        return b'["' + b"x" * (3 * MIB // 2) + b'"]'
    if kind == "wide characters":
        return b'["' + b"x" * (MIB // 2) + "\U0001f600".encode() + b'"]'
    items = {
        "numbers": b"%d.5",
        "integers": b"10000%d",
        "strings": b'"s%d"',
        "lists": b"[%d]",
        "objects": b'{"a":%d}',
        "beside NaN": b"%d.5",
    }
    count = 15_000 if kind == "objects" else 75_000
    first = b"NaN," if kind == "beside NaN" else b""
    return b"[" + first + b",".join(items[kind] % i for i in range(count)) + b"]"


def parse(kind: str) -> Callable[[], object]:
    text = json_of(kind)
    return lambda: parse_json(text, DEFAULT_LIMITS)


def repeated() -> Callable[[], object]:
    text = b'{"x":["::::",' + b",".join(b'"s%d"' % i for i in range(45_000)) + b"]}"
    return lambda: parse_json(text, DEFAULT_LIMITS)


def unpack() -> Callable[[], object]:
    data = msgpack.packb([[i] for i in range(75_000)])
    return lambda: parse_msgpack(data, DEFAULT_LIMITS)


def unzip() -> Callable[[], object]:
    packed = gzip.compress(os.urandom(4) * (2 * MIB))
    return lambda: inflate(b"gzip", [packed], 64 * MIB)


def write(datatype: str) -> Callable[[], object]:
    output = Output(TensorSpec.make("y", datatype, (-1,)))
    numbers = np.random.default_rng(1).standard_normal(100_000) * 1e4
    tensor = Tensor.from_numpy(numbers.astype(output.dtype))
    return lambda: output.json_data(tensor, NanPolicy.LITERAL)


def strings(element: bytes) -> Callable[[], object]:
    elements = [element] * 30_000
    return lambda: json_strings(elements)


TASKS: dict[str, Callable[[], Callable[[], object]]] = {
    **{
        kind: lambda kind=kind: parse(kind)  # type: ignore[misc]
        for kind in (
            "numbers",
            "integers",
            "strings",
            "lists",
            "objects",
            "one string",
            "wide characters",
            "beside NaN",
        )
    },
    "colons in strings": repeated,
    "msgpack": unpack,
    "gzip": unzip,
    "FP32": lambda: write("FP32"),
    "INT64": lambda: write("INT64"),
    "FP16": lambda: write("FP16"),
    "texts": lambda: strings(b"text of some length"),
    "control characters": lambda: strings(b"\x01" * 20),
    "bytes": lambda: strings(b"\xff" * 20),
}


def write_ends() -> None:
    """Writes how each task ends, by limit, each in a child of its own."""
    for kind, make in TASKS.items():
        task = make()
        for limit in LIMITS:
            if not (child := os.fork()):
                os._exit(_end_of(task, limit << 10))
            _, status = os.waitpid(child, 0)
            said = [kind, limit, os.waitstatus_to_exitcode(status)]
            sys.stdout.write(json.dumps(said) + "\n")


def _end_of(task: Callable[[], object], limit: int) -> int:
    size = int(Path("/proc/self/statm").read_text().split()[0])
    most = size * resource.getpagesize() + limit
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    try:
        task()
    except MemoryError:
        return 1
    except Exception:
        return 2
    return 0


@pytest.fixture(scope="module")
def ends() -> dict[str, dict[int, int]]:
    """0 for done, 1 for MemoryError, less for a signal, else 2: by kind and limit.

    From a process with one thread, so that a child's memory is its own.
    """
    done = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import write_ends; write_ends()"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, dict[int, int]] = {kind: {} for kind in TASKS}
    for kind, limit, code in map(json.loads, done.stdout.splitlines()):
        found[kind][limit] = code
    return found


@pytest.mark.parametrize("kind", TASKS)
def test_it_is_done_or_there_is_no_memory(
    kind: str, ends: dict[str, dict[int, int]]
) -> None:
    assert set(ends[kind]) == set(LIMITS)
    assert set(ends[kind].values()) <= {0, 1}, ends[kind]


def test_memory_does_end(ends: dict[str, dict[int, int]]) -> None:
    assert ends["numbers"][0] == 1
    assert ends["objects"][LIMITS[-1]] == 0


def test_there_is_room_for_little_and_none_for_too_much() -> None:
    ensure_room(0)
    ensure_room(64 * MIB)
    with pytest.raises(MemoryError, match="lacks 4611686018427387904 bytes"):
        ensure_room(1 << 62)


def test_work_within_other_work_reports_its_own_memory() -> None:
    outer, inner = list[int](), list[int]()
    with reserving(outer.append):
        reserve(1)
        with reserving(inner.append):
            reserve(2)
        reserve(3)
    reserve(4)
    assert (outer, inner) == ([1, 3], [2])


def test_strings_are_written_alike_where_memory_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = ['"\\/', "\x00\x1f\x7f\b\t\n\f\r", "é€\U0001f600\u2028", ""]
    texts.append(base64.b64encode(b"\xff").decode())
    usual = write_strings(texts)
    assert usual == orjson.dumps(texts)

    def full(size: int) -> None:
        raise MemoryError

    monkeypatch.setattr("app.codec.outputs.ensure_room", full)
    assert write_strings(texts) == usual
