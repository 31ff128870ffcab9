"""Executables written down and read again, and the damaged ones that are refused.

Covers: engine/programs/program.py.
"""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InvalidModel
from engine.programs.executable import (
    Copy,
    Executable,
    Execute,
    Graph,
    Node,
    ProgramCall,
    Repeat,
    Steps,
    StreamIn,
    StreamOut,
    Switch,
    digest_of,
)
from popef_io import DataType, TensorInfo

X = TensorInfo((-1, 4), DataType.F32)


def every_kind() -> Executable:
    graph = Graph("main", b"not looked into", weights=("w",), opsets={"": 17})
    execute = Execute("main", {"x": "x", "w": "w"}, {"y": "y"})
    return Executable(
        graphs={"main": graph},
        variables={
            "x": X,
            "y": X,
            "w": TensorInfo((), DataType.BF16),
            "i": TensorInfo(None, DataType.S64),
        },
        programs={
            0: StreamIn("h2d_w", "w"),
            1: Steps(
                (
                    StreamIn("h2d_x", "x"),
                    Repeat(3, Steps((execute, Copy("y", "x")))),
                    Switch("i", {-1: Steps(), 7: ProgramCall(2)}, Copy("x", "y")),
                    Switch("i", {0: execute}),
                )
            ),
            2: StreamOut("y", "d2h_y"),
        },
    )


def document() -> dict[str, Any]:
    loaded: dict[str, Any] = msgpack.unpackb(every_kind().encode())
    return loaded


def decode(doc: object) -> Executable:
    return Executable.decode(msgpack.packb(doc))


def test_what_was_encoded_is_decoded() -> None:
    executable = every_kind()
    assert Executable.decode(executable.encode()) == executable


def test_equal_executables_have_equal_bytes() -> None:
    assert every_kind().encode() == every_kind().encode()


def test_an_empty_executable_is_valid() -> None:
    assert Executable.decode(Executable().encode()) == Executable()


def test_any_buffer_is_read() -> None:
    packed = every_kind().encode()
    for buffer in (packed, bytearray(packed), memoryview(packed)):
        assert Executable.decode(buffer) == every_kind()


def test_the_digest_is_computed_and_compared() -> None:
    doc = document()
    assert doc["graphs"][0]["digest"] == digest_of(b"not looked into")
    doc["graphs"][0]["model"] = b"something else"
    with pytest.raises(InvalidModel, match="graph 'main' has changed"):
        decode(doc)
    changed = Executable.decode(msgpack.packb(doc), check_digests=False)
    assert changed.graphs["main"].model == b"something else"


def test_a_missing_digest_is_not_taken_as_computed() -> None:
    doc = document()
    doc["graphs"][0]["digest"] = ""
    with pytest.raises(InvalidModel, match="digest"):
        decode(doc)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format=2), "expected format 1, got 2"),
        (lambda d: d.update(format=True), "expected format 1, got True"),
        (lambda d: d.pop("format"), "expected format 1, got None"),
        (lambda d: d.pop("programs"), "'programs' is missing"),
        (lambda d: d.update(graphs={}), "graphs must be a list"),
        (lambda d: d["graphs"].append(d["graphs"][0]), "two graphs"),
        (lambda d: d["graphs"][0].update(model="text"), "must be bytes"),
        (lambda d: d["graphs"][0].update(weights=["w", "w"]), "twice"),
        (lambda d: d["graphs"][0].update(weights=["w", "v"]), "its weight 'v'"),
        (lambda d: d["graphs"][0].update(opsets={"": "17"}), "must be an integer"),
        (lambda d: d["variables"].append(["x", "F32", [1]]), "two variables"),
        (lambda d: d["variables"].append(["z", "F31", [1]]), "type 'F31'"),
        (lambda d: d["variables"].append(["z", "F32", [-2]]), "must be from -1"),
        (lambda d: d["variables"].append(["z", "F32", [1 << 62]]), "must be from -1"),
        (
            lambda d: d["variables"].append(["z", "F32", [1] * 65]),
            "expected at most 64",
        ),
        (lambda d: d["variables"].append(["z", "F32", 5]), "must be a list"),
        (lambda d: d["variables"].append(["z"]), "a name, a data type"),
        (lambda d: d["variables"].pop(1), "variable 'y', which does not exist"),
        (lambda d: d["graphs"].pop(), "graph 'main', which does not exist"),
        (lambda d: d["programs"].pop(2), "calls program 2"),
        (
            lambda d: d["programs"].append([0, {"do": "sequence"}]),
            "two programs have the number 0",
        ),
        (lambda d: d["programs"].append([-1, {"do": "sequence"}]), "must be from 0"),
        (lambda d: d["programs"].append([3]), "a number and a node"),
    ],
)
def test_what_is_wrong_in_the_document_is_named(change: Any, message: str) -> None:
    doc = document()
    change(doc)
    with pytest.raises(InvalidModel, match=message):
        decode(doc)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("sequence", "must be a map"),
        ({}, "unknown kind of node None"),
        ({"do": ["x"]}, "unknown kind of node"),
        ({"do": "explode"}, "unknown kind of node 'explode'; expected sequence"),
        ({"do": "sequence"}, "sequence node lacks 'nodes'"),
        ({"do": "sequence", "nodes": {}}, "must be a list"),
        ({"do": "stream_in", "handle": 3, "variable": "x"}, "must be a string"),
        ({"do": "copy", "source": "x", "target": "q"}, "variable 'q'"),
        ({"do": "copy", "source": "x" * 70000, "target": "x"}, "got 70000"),
        ({"do": "repeat", "count": -1, "body": {}}, "must be from 0"),
        ({"do": "repeat", "count": 1 << 40, "body": {}}, "must be from 0"),
        ({"do": "repeat", "count": 1.5, "body": {}}, "must be an integer"),
        ({"do": "call", "program": "1"}, "must be an integer"),
        ({"do": "execute", "graph": "main", "inputs": [], "outputs": {}}, "a map"),
        (
            {"do": "execute", "graph": "main", "inputs": {"x": "x"}, "outputs": {}},
            "without its weight 'w'",
        ),
        (
            {"do": "switch", "selector": "i", "cases": [[1]], "default": None},
            "a number and a node",
        ),
        (
            {
                "do": "switch",
                "selector": "i",
                "cases": [[1, {"do": "call", "program": 0}]] * 2,
                "default": None,
            },
            "case 1 twice",
        ),
    ],
)
def test_what_is_wrong_in_a_node_is_named(node: object, message: str) -> None:
    doc = document()
    doc["programs"].append([9, node])
    with pytest.raises(InvalidModel, match=message):
        decode(doc)


def test_nodes_may_not_be_nested_without_end() -> None:
    doc = document()
    node: Any = {"do": "sequence", "nodes": []}
    for _ in range(63):
        node = {"do": "sequence", "nodes": [node]}
    doc["programs"].append([9, node])
    decode(doc)
    doc["programs"][-1][1] = {
        "do": "sequence",
        "nodes": [{"do": "repeat", "count": 1, "body": node}],
    }
    with pytest.raises(InvalidModel, match="nested more than 64 deep"):
        decode(doc)


def test_nesting_beyond_what_msgpack_reads_is_refused() -> None:
    with pytest.raises(InvalidModel, match="damaged"):
        Executable.decode(b"\x91" * 100_000)


def test_programs_may_not_call_themselves() -> None:
    loop: dict[int, Node] = {0: ProgramCall(1), 1: Steps((ProgramCall(0),))}
    with pytest.raises(InvalidModel, match="calls itself"):
        Executable(programs=loop).encode()


def test_calls_may_not_be_nested_without_end() -> None:
    chain: dict[int, Node] = {n: ProgramCall(n + 1) for n in range(20)}
    chain[20] = Steps()
    with pytest.raises(InvalidModel, match="more than 8 deep"):
        Executable(programs=chain).encode()


def test_a_run_must_come_to_an_end() -> None:
    node: Node = Steps()
    for _ in range(3):
        node = Repeat(1 << 20, node)
    with pytest.raises(InvalidModel, match="steps"):
        Executable(programs={0: node}).encode()


def test_a_key_twice_is_refused() -> None:
    packed = msgpack.packb({"format": 1, "graphs": [], "variables": []})
    twice = b"\x84" + packed[1:] + b"\xa6format\x01"
    with pytest.raises(InvalidModel, match="key twice"):
        Executable.decode(twice)


@pytest.mark.parametrize("data", [b"", b"\xc0", b"\xdf\xff\xff\xff\xff", b"PK\x03\x04"])
def test_what_is_no_executable_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidModel, match="not a valid executable"):
        Executable.decode(data)


def test_every_truncation_is_refused() -> None:
    packed = every_kind().encode()
    for length in range(len(packed)):
        with pytest.raises(InvalidModel):
            Executable.decode(packed[:length])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_changed_byte_never_surprises(data: st.DataObject) -> None:
    packed = bytearray(every_kind().encode())
    position = data.draw(st.integers(0, len(packed) - 1))
    packed[position] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(InvalidModel):
        Executable.decode(packed, check_digests=False)


def test_repr_does_not_show_the_model() -> None:
    assert "not looked into" not in repr(every_kind().graphs["main"])
    assert "graphs=['main']" in repr(every_kind())


def test_a_graph_must_go_by_its_own_name() -> None:
    with pytest.raises(InvalidModel, match="graph 'a' is listed as 'b'"):
        Executable(graphs={"b": Graph("a", b"")}).encode()


def test_nothing_of_it_waits_for_the_garbage_collector() -> None:
    packed = every_kind().encode()

    def alive() -> int:
        return sum(isinstance(thing, Executable) for thing in gc.get_objects())

    before = alive()
    gc.disable()
    try:
        for _ in range(3):
            Executable.decode(packed)
        assert alive() == before
    finally:
        gc.enable()
