"""Sums as additions, exchanges made one: graphs change, values do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import popxl
from popxl import ops, transforms


def types(graph: Any) -> list[str]:
    return [op.opType() for op in graph._pb_graph.getOps()]


def program(exchange: Any) -> tuple[popxl.Ir, list[Any], list[Any]]:
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        loads = [popxl.h2d_stream((2,), popxl.float32, f"x{n}") for n in range(2)]
        stores = [popxl.d2h_stream((2,), popxl.float32, f"y{n}") for n in range(2)]
        first = ops.host_load(loads[0])
        with exchange():
            ops.host_store(stores[0], first)
            second = ops.host_load(loads[1])
        if second.tile_set == "io":
            second = ops.io_tile_copy(second)
        ops.host_store(stores[1], second + first)
    return ir, loads, stores


@pytest.mark.parametrize(
    "exchange", [transforms.merge_exchange, transforms.io_tile_exchange]
)
def test_exchanges_become_one(exchange: Any) -> None:
    ir, loads, stores = program(exchange)
    found = types(ir.main_graph)
    assert found.count("MultiExchange") == 1
    assert found.count("Init") == 2
    assert found.count("HostLoad") == found.count("HostStore") == 1
    one, two = (np.full(2, n, np.float32) for n in (1, 2))
    with popxl.Session(ir) as session:
        results = session.run(dict(zip(loads, (one, two), strict=True)))
    assert results[stores[0]].tolist() == [1, 1]
    assert results[stores[1]].tolist() == [3, 3]


def test_what_waits_for_each_other_is_not_merged() -> None:
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        x = popxl.h2d_stream((2,), popxl.float32, "x")
        y = popxl.d2h_stream((2,), popxl.float32, "y")
        with transforms.merge_exchange():
            ops.host_store(y, ops.host_load(x) * 2)
    assert "MultiExchange" not in types(ir.main_graph)
    with popxl.Session(ir) as session:
        assert session.run({x: np.ones(2, np.float32)})[y].tolist() == [2, 2]
    with popxl.Ir().main_graph:
        x = popxl.h2d_stream((2,), popxl.float32, "x")
        y = popxl.d2h_stream((2,), popxl.float32, "y")
        exchange = transforms.io_tile_exchange()
        exchange.__enter__()
        ops.host_store(y, ops.host_load(x))
        with pytest.raises(RuntimeError, match="More than one"):
            exchange.__exit__(None, None, None)


def test_sums_become_additions() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.array([1.0, 2.0], np.float32))
        graph = ir.create_graph(lambda t: t * t + t * 3 + t * 4, x)
        call = ops.call_with_info(graph, x)
        info: Any = transforms.autodiff(graph)
        before = types(info.graph)
        names = [t.id for t in info.graph.outputs]
        assert transforms.decompose_sum(info.graph) is info.graph
        after = types(info.graph)
        assert before.count("Sum") == 1
        assert (after.count("Sum"), after.count("Init"), after.count("Add")) == (
            0,
            1,
            4,
        )
        assert [t.id for t in info.graph.outputs] == names
        one = popxl.constant(np.ones(2, np.float32))
        dx = ops.call(info.graph, one, inputs_dict=info.inputs_dict(call))[0]
        out = popxl.d2h_stream((2,), popxl.float32)
        ops.host_store(out, dx)
    with popxl.Session(ir) as session:
        assert session.run()[out].tolist() == [9, 11]
