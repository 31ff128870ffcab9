"""Sums as additions, exchanges made one: graphs change, values do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import popir
import popxl
from engine import ModelRunner, ModelRunnerConfig
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


@pytest.mark.parametrize(
    "exchange", [transforms.merge_exchange, transforms.io_tile_exchange]
)
@pytest.mark.parametrize("replicas", [1, 2])
def test_rows_are_exchanged_with_the_rest(
    exchange: Any, replicas: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> tuple[popxl.Ir, Any, Any]:
        ir = popxl.Ir(replication=replicas)
        with ir.main_graph, popxl.in_sequence():
            stream = popxl.h2d_stream((2,), popxl.float32, "x")
            out = popxl.d2h_stream((2,), popxl.float32, "y")
            buffer = popxl.remote_buffer((2,), popxl.float32, 4)
            popxl.remote_variable(np.full(2, 10, np.float32), buffer, 3, name="v")
            kept = popxl.variable(np.full(2, 5, np.float32), name="kept")
            at = popxl.variable(1, popxl.uint32)
            before = kept + 1
            with exchange():
                ops.remote_store(buffer, at, before)
                x = ops.host_load(stream)
                row = ops.remote_load(buffer, 3)
                ops.remote_load_(buffer, 1, kept)
            found = [ops.io_tile_copy(t) if t.tile_set == "io" else t for t in (x, row)]
            ops.host_store(out, found[0] + found[1] + kept)
        return ir, stream, out

    monkeypatch.setenv("POPXL_CACHE_DIR", str(tmp_path / "cache"))
    given = np.arange(2 * replicas, dtype=np.float32).reshape((replicas, 2))
    given = given if replicas > 1 else given[0]
    for _ in range(2):
        ir, stream, out = made()
        found = types(ir.main_graph)
        assert found.count("MultiExchange") == 1
        assert not {"RemoteStore", "RemoteLoad", "RemoteLoadInplace"} & set(found)
        with popxl.Session(ir, "ipu_model") as session:
            assert (session.run({stream: given})[out] == given + 16).all()
    popir.export_popef(ir, tmp_path / "m.popef")
    with ModelRunner(tmp_path / "m.popef", ModelRunnerConfig()) as runner:
        # The session brought `kept` to the host: it is 6.
        assert (runner.execute({"x": given})["y"] == given + 17).all()


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


def test_what_the_program_orders_between_is_not_merged() -> None:
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        streams = [popxl.h2d_stream((2,), popxl.float32) for _ in range(3)]
        out = popxl.d2h_stream((2,), popxl.float32)
        total = popxl.variable(np.zeros(2, np.float32))
        with transforms.merge_exchange():
            first, second = (ops.host_load(stream) for stream in streams[:2])
            ops.add_(total, first * second)
            third = ops.host_load(streams[2])
            ops.host_store(out, total)
        ops.add_(total, third)
    found = types(ir.main_graph)
    assert found.count("MultiExchange") == 2
    assert not {"HostLoad", "HostStore"} & set(found)
    session = popxl.Session(ir, "ipu_model")
    with session:
        given = {s: np.full(2, n + 2, np.float32) for n, s in enumerate(streams)}
        assert session.run(given)[out].tolist() == [6, 6]
    assert session.get_tensor_data(total).tolist() == [10, 10]


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
