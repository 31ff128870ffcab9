"""Programs of several replicas and with remote memory as files.

Covers: plugins/popxl/src/popir/lowering/unrolled.py,
    plugins/popxl/src/popir/lowering/moves.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import popir
import popxl
from engine import ModelRunner, ModelRunnerConfig
from plugins.popxl.tests.popir.replica_programs import ReplicaProgram
from popgate_sessions import LocalSession
from popir.export import compile_whole
from popir.lowering.compile import LOAD, MAIN, SAVE
from popxl import ops
from popxl.ops import collectives

F32 = popxl.float32
#: About 30 were compared when this was written.
COUNT = 16


def check(seed: int) -> None:
    """Compare a random program in a session with what a file of it holds."""
    program = ReplicaProgram(seed, is_for_file=True)
    compiled, _ = compile_whole(program.ir._below)
    data = {
        f"h2d_{t.id}": np.array(popir.to_carrier(t.data))[np.newaxis]
        for t in compiled.variables
        if t.data is not None
    }
    inputs = program.inputs(0)
    session = popxl.Session(program.ir, "ipu_model")
    outputs = session.create_host_outputs()
    for array in outputs.values():
        array[...] = 0
    with session:
        session.run_with_outputs(inputs, outputs)
        handles = [handle for handle, *_ in program.shards]
        kept = session.get_tensors_data([*program.special, *handles])
    given = {f"h2d_{s.tensor_id}": array for s, array in inputs.items()}
    found = {
        f"anchor_d2h_{s.tensor_id}": np.zeros_like(array)
        for s, array in outputs.items()
    }
    back = {
        f"weight_d2h_{t.id}": np.empty((1, *t.data.shape), t.dtype.carrier)
        for t in compiled.variables
        if t.data is not None
    }
    runner = LocalSession(compiled.executable, compiled.metadata)
    try:
        runner.run([LOAD], data, {})
        runner.run([MAIN], given, found)
        runner.run([SAVE], {}, back)
    finally:
        runner.close()
    for stream, array in outputs.items():
        name = f"anchor_d2h_{stream.tensor_id}"
        np.testing.assert_array_equal(found[name], array, f"{seed} {stream}")
    for variable, array in kept.items():
        whole: Any = back.get(f"weight_d2h_{variable.id}")
        if whole is not None and whole[0].shape == array.shape:
            np.testing.assert_array_equal(whole[0], array, f"{seed} {variable}")


@pytest.mark.parametrize("first", range(0, COUNT, 8))
def test_a_file_holds_what_a_session_runs(first: int) -> None:
    for seed in range(first, first + 8):
        check(seed)


def served(path: Path, inputs: dict[str, Any]) -> dict[str, Any]:
    """What a model answers."""
    with ModelRunner(path, ModelRunnerConfig()) as runner:
        return dict(runner.execute(inputs))


def test_all_replicas_in_one_request(tmp_path: Path) -> None:
    ir = popxl.Ir(replication=4)
    with ir.main_graph, popxl.in_sequence():
        x = popxl.h2d_stream((3,), F32, "x")
        y = popxl.d2h_stream((3,), F32, "y")
        rows = np.arange(4, dtype=np.float32).reshape(4, 1)
        own = popxl.variable(
            rows, name="own", replica_grouping=ir.replica_grouping(group_size=1)
        )
        total = collectives.replicated_all_reduce(ops.host_load(x) * own)
        ops.host_store(y, total + own)
    report = popir.export_popef(ir, tmp_path / "m.popef")
    assert not report.batch.rows
    assert report.inputs[0].info.shape == (4, 3)
    data = np.arange(12, dtype=np.float32).reshape(4, 3)
    expected = (data * rows).sum(0) + rows
    np.testing.assert_array_equal(
        served(tmp_path / "m.popef", {"x": data})["y"], expected
    )


def test_rows_that_last_from_request_to_request(tmp_path: Path) -> None:
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        x = popxl.h2d_stream((2,), F32, "x")
        at = popxl.h2d_stream((), popxl.uint32, "at")
        y = popxl.d2h_stream((2,), F32, "y")
        buffer = popxl.remote_buffer((2,), F32, 3)
        popxl.remote_variable(np.full(2, 10, np.float32), buffer, 2, name="r")
        place = ops.host_load(at)
        row = ops.remote_load(buffer, place) + ops.host_load(x)
        ops.remote_store(buffer, place, row)
        ops.host_store(y, row)
    popir.export_popef(ir, tmp_path / "m.popef")
    with ModelRunner(tmp_path / "m.popef", ModelRunnerConfig()) as runner:
        one = np.ones(2, np.float32)
        found = [
            runner.execute({"x": one, "at": np.array(n, np.uint32)})["y"].tolist()
            for n in (0, 0, 2, 2, 1)
        ]
        assert found == [[1, 1], [2, 2], [11, 11], [12, 12], [1, 1]]


def test_replicas_without_a_difference_are_rows(tmp_path: Path) -> None:
    ir = popxl.Ir(replication=4)
    with ir.main_graph:
        x = popxl.h2d_stream((2, 3), F32, "x")
        y = popxl.d2h_stream((2, 3), F32, "y")
        w = popxl.variable(np.full((3, 3), 0.5, np.float32), name="w")
        ops.host_store(y, ops.relu(ops.host_load(x) @ w))
    report = popir.export_popef(ir, tmp_path / "m.popef")
    assert report.batch.rows, report.batch
    data = np.arange(12, dtype=np.float32).reshape(4, 3)
    found = served(tmp_path / "m.popef", {"x": data})["y"]
    np.testing.assert_allclose(found, data @ np.full((3, 3), 0.5))


def test_what_a_file_cannot_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ir = popxl.Ir(replication=2)
    with ir.main_graph, popxl.in_sequence():
        condition = popxl.h2d_stream((), popxl.bool, "c")
        y = popxl.d2h_stream((), F32, "y")
        x = popxl.variable(1.0)
        reducing = ir.create_graph(collectives.replicated_all_reduce, x)
        other = ir.create_graph(lambda t: ops.negate(t), x)
        (z,) = ops.conditional(ops.host_load(condition), reducing, other, [x], [x])
        ops.host_store(y, z)
    with pytest.raises(popir.NotYet, match=r"replicated_all_reduce.* in a branch"):
        popir.export_popef(ir, tmp_path / "m.popef")
    large = popxl.Ir()
    with large.main_graph:
        buffer = popxl.remote_buffer((1 << 20,), F32, 300)
        out = popxl.d2h_stream((1 << 20,), F32)
        ops.host_store(out, ops.remote_load(buffer, 0))
    with pytest.raises(popir.NotYet, match="remote buffers have"):
        popir.export_popef(large, tmp_path / "m.popef")
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    several = popxl.Ir(replication="popdist")
    with pytest.raises(popir.NotYet, match="instead of 'popdist'"):
        popir.export_popef(several, tmp_path / "m.popef")
    assert list(tmp_path.iterdir()) == []
