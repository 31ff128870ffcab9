"""Programs that load and store rows of remote memory.

Covers: plugins/popxl/src/popir/remote.py, plugins/popxl/src/popir/exchanges.py,
    plugins/popxl/src/popir/placement.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import popir
import popxl
from popxl import ops

F32 = popxl.float32


def number(value: int) -> Any:
    """A constant offset."""
    return popxl.constant(value, popxl.uint32)


def test_rows_are_read_and_written_in_the_order_of_the_program() -> None:
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        buffer = popxl.remote_buffer((2,), F32, 4)
        v = popxl.remote_variable(np.array([1.0, 2.0], np.float32), buffer, 1)
        before = ops.remote_load(buffer, 1)
        ops.remote_store(buffer, 1, before + 1)
        ops.remote_store(buffer, 1, before * 10)
        target = ops.init((2,), F32, "target")
        again = ops.remote_load_(buffer, number(1), target)
        out = popxl.d2h_stream((3, 2), F32)
        rows = [t.reshape((1, 2)) for t in (before, again, target)]
        ops.host_store(out, ops.concat(rows))
    with popxl.Session(ir) as session:
        assert session.run()[out].tolist() == [[1, 2], [10, 20], [10, 20]]
        assert session.run()[out].tolist() == [[10, 20], [100, 200], [100, 200]]
        assert session.get_tensor_data(v).tolist() == [100, 200]
        session.write_variable_data(v, np.zeros(2, np.float32))
        assert session.run()[out].tolist() == [[0, 0]] * 3


def counting_loop(ir: popxl.Ir, buffer: Any, count: int) -> Any:
    """Load each row, add one to it and store it; the sum of what was there."""

    def body(at: Any, total: Any) -> Any:
        row = ops.remote_load(buffer, at)
        ops.remote_store(buffer, at, row + 1)
        return at + number(1), total + row

    start = popxl.constant(np.zeros(2, np.float32))
    graph = ir.create_graph(body, number(0), start)
    return ops.repeat(graph, count, number(0), start)[1]


def test_rows_by_a_counter_of_a_loop_last_from_run_to_run_and_over_sessions() -> None:
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        buffer = popxl.remote_buffer((2,), F32, 4)
        out = popxl.d2h_stream((2,), F32)
        ops.host_store(out, counting_loop(ir, buffer, 4))
    for first in (0, 8):
        with popxl.Session(ir) as session:
            assert session.run()[out].tolist() == [first, first]
            assert session.run()[out].tolist() == [first + 4, first + 4]


def test_rows_in_a_called_graph_and_in_branches() -> None:
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        buffer = popxl.remote_buffer((2,), F32, 3)
        chosen = popxl.h2d_stream((), popxl.bool)
        at = popxl.h2d_stream((), popxl.uint32)
        out = popxl.d2h_stream((2,), F32)
        place = ops.host_load(at)

        def add(offset: Any, by: Any) -> Any:
            made = ops.remote_load(buffer, offset) + by
            ops.remote_store(buffer, offset, made)
            return made

        one = popxl.constant(np.ones(2, np.float32))
        graph = ir.create_graph(add, place, one)
        ops.call(graph, place, one)
        ops.call(graph, place, one)
        other = ir.create_graph(lambda offset, by: by * 100, place, one)
        result = ops.conditional(
            ops.host_load(chosen), graph, other, [place, one], [place, one]
        )
        ops.host_store(out, result[0])
    with popxl.Session(ir) as session:
        assert session.run({chosen: True, at: 1})[out].tolist() == [3, 3]
        assert session.run({chosen: False, at: 1})[out].tolist() == [100, 100]
        assert session.run({chosen: True, at: 1})[out].tolist() == [8, 8]
        assert session.run({chosen: True, at: 2})[out].tolist() == [3, 3]
        with pytest.raises(
            popir.ValueOutOfRange,
            match="remote buffer 1 has 3 entries: there is no row at offset 3",
        ):
            session.run({chosen: True, at: 3})
        assert session.run({chosen: True, at: 2})[out].tolist() == [6, 6]


def test_an_offset_that_is_out_of_range_or_a_row_that_does_not_fit_is_refused() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        buffer = popxl.remote_buffer((2,), F32, 2)
        with pytest.raises(popir.ValueOutOfRange, match="no row at offset 2"):
            popxl.remote_variable(np.zeros(2, np.float32), buffer, 2)
        with pytest.raises(ValueError, match="does not match buffer"):
            popxl.remote_variable(np.zeros(3, np.float32), buffer, 0)
        with pytest.raises(ValueError, match="does not match buffer"):
            ops.remote_store(buffer, 0, popxl.constant(np.zeros(3, np.float32)))
        with pytest.raises(ValueError, match="negative"):
            ops.remote_load(buffer, -1)
        ops.remote_load(buffer, 7)
    with pytest.raises(popir.ValueOutOfRange, match=r"2 entries.* offset 7"):
        popxl.Session(ir)


def test_names_of_loads() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        buffer = popxl.remote_buffer((2,), F32, 2)
        assert ops.remote_load(buffer, 0).name == "id_1_offset_offset_remote_loaded"
        assert ops.remote_load(buffer, 0, "x").name == "x_remote_loaded"
        v = popxl.remote_variable(np.zeros(2, np.float32), buffer, 1)
        assert v.location_info.isRemote()
        assert v.location_info.getRemoteBufferInfo() == (1, 1)
        v + v
    with pytest.raises(popir.IrError, match="is in remote memory"):
        popxl.Session(ir)


def test_a_mapped_file_is_read_and_written_where_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    data = np.memmap(path, np.float32, "w+", shape=(1 << 20,))
    data[:2] = 1, 2
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        buffer = popxl.remote_buffer(data.shape, F32, 1)
        v = popxl.remote_variable(data, buffer)
        row = ops.remote_load(buffer, 0)
        ops.remote_store(buffer, 0, row + 1)
        out = popxl.d2h_stream((2,), F32)
        ops.host_store(out, ops.slice(row, 0, 2))
    with popxl.Session(ir) as session:
        assert session.run()[out].tolist() == [1, 2]
        assert data[:2].tolist() == [2, 3], "stored where it lies"
        assert session.run()[out].tolist() == [2, 3]
        assert session.get_tensor_data(v) is data
    assert np.fromfile(path, np.float32, 2).tolist() == [3, 4]


def test_a_file_that_is_only_read_stays_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    np.array([1, 2], np.float32).tofile(path)
    data = np.memmap(path, np.float32, "r", shape=(2,))
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        buffer = popxl.remote_buffer(data.shape, F32, 1)
        popxl.remote_variable(data, buffer)
        row = ops.remote_load(buffer, 0) + 1
        ops.remote_store(buffer, 0, row)
        out = popxl.d2h_stream((2,), F32)
        ops.host_store(out, row)
    with popxl.Session(ir) as session:
        assert session.run()[out].tolist() == [2, 3]
        assert session.run()[out].tolist() == [3, 4]
        with pytest.raises(Exception, match="read-only"):
            session.weights_to_host()
    assert np.fromfile(path, np.float32).tolist() == [1, 2]


def test_in_this_process_for_any_device() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        buffer = popxl.remote_buffer((2,), F32, 1)
        out = popxl.d2h_stream((2,), F32)
        ops.host_store(out, ops.remote_load(buffer, 0))
    with popxl.Session(ir, "ipu_hw") as session:
        assert session.run()[out].tolist() == [0, 0]
        assert session.device._device is None, "it takes no device of the pool"
