"""Where temporaries end.

Covers: plugins/popxl/src/popir/replicas/lifetimes.py.
"""

from __future__ import annotations

import numpy as np

import popxl
from engine.programs import (
    Copy,
    Execute,
    Node,
    Repeat,
    Steps,
    StreamIn,
    StreamOut,
    Switch,
)
from popir.replicas.lifetimes import lifetimes
from popxl import ops
from popxl.ops import collectives


def _run(inputs: str, outputs: str) -> Execute:
    return Execute(
        "g",
        {f"i{n}": v for n, v in enumerate(inputs.split())},
        {f"o{n}": v for n, v in enumerate(outputs.split())},
    )


def _last(program: Steps) -> list[set[str]]:
    found = lifetimes([program]).last
    return [set(found.get(id(node), ())) for node in program.nodes]


def test_a_temporary_ends_with_its_last_reader() -> None:
    program = Steps(
        (
            StreamIn("h", "%c1"),
            _run("%c1 w", "%v1 %v2"),
            StreamOut("%v1", "out"),
            _run("%v2 %v1", "w"),
        )
    )
    assert _last(program) == [set(), {"%c1"}, set(), {"%v1", "%v2"}]


def test_loops_and_branches() -> None:
    body = Steps((_run("%v1 %v3", "%v3"), _run("%v3", "%v4"), _run("%v4", "x")))
    branch = Switch("%v2", {0: Steps((_run("%v5", "x"),))}, Steps())
    program = Steps((_run("w", "%v1 %v2 %v3 %v5"), Repeat(3, body), branch))
    # A value of the loop is carried; what is read outside of it ends there.
    assert _last(body) == [set(), set(), {"%v4"}]
    assert _last(program) == [set(), {"%v1", "%v3"}, {"%v2", "%v5"}]


def test_values_that_are_written_before_by_another_list_stay() -> None:
    inner = Steps((_run("%v1", "x"),))
    program = Steps((inner, _run("w", "%v1")))
    assert _last(program) == [set(), set()]


def test_what_a_sum_may_be_made_in() -> None:
    nodes: tuple[Node, ...] = (
        StreamIn("h", "%c1"),
        _run("%c1", "%v1 %v2 %v3 %v4"),
        StreamOut("%v1", "a"),
        StreamOut("%v2", "a"),
        StreamOut("%v2", "b"),
        Copy("%v3", "w"),
        StreamOut("%v3", "a"),
        StreamOut("%v4", "a"),
        _run("%v4", "x"),
        StreamIn("h", "%c2"),
        StreamOut("%c2", "a"),
    )
    found = lifetimes([Steps(nodes)])
    # Not what two streams send, what a variable is, what is read later, what comes
    # from the caller.
    assert found.summed == {"%v1"}
    assert found.fed == {"%c1"}
    assert "%v4" not in found.last.get(id(nodes[7]), ())


def test_nothing_that_is_read_later_is_summed_in_place() -> None:
    ir = popxl.Ir(replication=2)
    with ir.main_graph, popxl.in_sequence():
        stream = popxl.h2d_stream((3,), popxl.float32)
        kept = popxl.variable(np.zeros(3, np.float32), name="kept")
        x = ops.host_load(stream)
        y = x + x
        total = collectives.replicated_all_reduce(y)
        again = collectives.replicated_all_reduce(total)
        z = y + again
        ops.add_(kept, y)
        outs = [popxl.d2h_stream((3,), popxl.float32) for _ in range(4)]
        for out, t in zip(outs, (y, total, again, z), strict=True):
            ops.host_store(out, t)
    given = np.array([[1, 2, 3], [10, 20, 30]], np.float32)
    before = given.copy()
    with popxl.Session(ir, "ipu_model") as session:
        for _ in range(2):
            found = session.run({stream: given})
    y2 = 2 * before
    assert (given == before).all()
    total2 = y2.sum(0)
    wanted = (y2, total2, 2 * total2, y2 + 2 * total2)
    for out, expected in zip(outs, wanted, strict=True):
        assert (found[out] == expected).all()
