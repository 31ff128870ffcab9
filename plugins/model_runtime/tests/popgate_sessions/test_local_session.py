"""Programs in the caller's own process, over arrays."""

from __future__ import annotations

import numpy as np
import pytest

from engine import UnknownAnchor
from engine.programs import Copy, Executable, Node, Repeat, Steps, StreamIn, StreamOut
from popef_io import DataType, Metadata, TensorInfo
from popgate_sessions import LocalSession


def session() -> LocalSession:
    """Program 1 keeps what it reads, program 2 sends it; program 3 hands on four."""
    info = TensorInfo((2,), DataType.F32)
    hand_on = Steps((StreamIn("in", "v"), StreamOut("v", "out")))
    programs: dict[int, Node] = {
        1: Steps((StreamIn("in", "v"), Copy("v", "kept"))),
        2: StreamOut("kept", "out"),
        3: Repeat(4, hand_on),
    }
    executable = Executable({}, {"v": info, "kept": info}, programs)
    return LocalSession(executable, Metadata("none"), threads=1)


def test_arrays_are_taken_slice_by_slice_and_begin_anew_in_each_run() -> None:
    local = session()
    data = np.arange(6, dtype=np.float32).reshape(3, 2)
    out = np.zeros((4, 2), np.float32)
    for _ in range(2):
        local.run([3], {"in": data}, {"out": out})
        np.testing.assert_array_equal(out, data[[0, 1, 2, 0]])
    seen: list[float] = []
    local.run([3], {"in": data}, {"out": lambda value: seen.append(float(value[0]))})
    assert seen == [0, 2, 4, 0]


def test_variables_live_from_run_to_run() -> None:
    local = session()
    data = np.ones((1, 2), np.float32)
    local.run([1], {"in": data})
    data[...] = 5
    out = np.zeros((1, 2), np.float32)
    local.run([2], None, {"out": out})
    assert out.tolist() == [[1, 1]]


def test_a_stream_that_is_not_given_is_named() -> None:
    with pytest.raises(UnknownAnchor, match="input stream 'in'"):
        session().run([1])
    with pytest.raises(UnknownAnchor, match="output stream 'out'"):
        session().run([3], {"in": np.zeros((1, 2), np.float32)})
